# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the modules share that serve in the served unit's place: options, the way to the stage, refusals.

Private to this collection: it may change in any release. The options' text is the documentation fragment `board`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.edge.moe.plugins.module_utils import _measure, _module, _variants

OPTIONS: dict[str, Any] = {
    "program": {"type": "path", "required": True},
    "model": {"type": "path", "required": True},
    "model_sha256": {"type": "str", "default": ""},
    **_module.PROMPTS,
    "url": {"type": "str", "default": "http://127.0.0.1:8080"},
    "block_device": {"type": "str"},
    "unit": {"type": "str", "default": _variants.Base.unit},
    "served_unit": {"type": "str", "default": _variants.Base.served_unit},
    "floor_unit": {"type": "str", "default": _variants.Base.floor_unit},
    "ready_s": {"type": "int", "default": 600},
    "labels": {"type": "dict", "default": {}},
    "restart": {"type": "bool", "default": False},
    "progress_file": {"type": "path"},
}
REFUSALS = (_measure.MeasureError, _variants.VariantError, _variants.StageError, _variants.StageLost)


def base_of(params: dict[str, Any]) -> _variants.Base:
    """Raises StageError for what is not on this board."""
    # A link to the current release may be changed while this runs.
    program = os.path.realpath(params["program"])
    for path in (program, params["model"]):
        if not os.path.isfile(path):
            raise _variants.StageError(f"{path} is no file on this board; ansible-playbook site.yml puts it there")
    places = {name: params[name] for name in ("url", "block_device", "unit", "served_unit", "floor_unit")}
    return _variants.Base(program, params["model"], **places)


def saying(params: dict[str, Any]) -> Callable[[str], None]:
    """What puts a line about the progress where the caller looks for it."""

    def say(line: str) -> None:
        if params["progress_file"]:
            with open(params["progress_file"], "w", encoding="utf-8") as stream:
                stream.write(line + "\n")

    return say


def finish(module: AnsibleModule, run: Callable[[], dict[str, Any]], *refusals: type[Exception]) -> None:
    """End the module with what `run` returns, or with its refusal's own text."""
    expected: tuple[type[Exception], ...] = (*REFUSALS, *refusals)
    try:
        result = run()
    except expected as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['dest']}: {error.strerror}")
    else:
        module.exit_json(**result)
