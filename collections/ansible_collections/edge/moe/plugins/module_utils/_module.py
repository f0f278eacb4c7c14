# Copyright: edge.moe contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What modules share: options that several have, and the last step of those that change nothing.

The options' text is the documentation fragment `board`. Private to this collection: it may change in any release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule

FACTS: dict[str, Any] = {
    "gguf": {"type": "dict", "required": True},
    "jetson": {"type": "dict", "required": True},
    "devfreq": {"type": "dict", "default": {}},
}
PROMPTS: dict[str, Any] = {
    "prompts": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "id": {"type": "str", "required": True},
            "lang": {"type": "str"},
            "text": {"type": "str", "required": True},
        },
    },
}


def exit_facts(module: AnsibleModule, key: str, facts: dict[str, Any]) -> NoReturn:
    """Return one fact and nothing else; its `warnings` are Ansible's warnings as well."""
    for line in facts["warnings"]:
        module.warn(line)
    module.exit_json(changed=False, ansible_facts={key: facts})
    raise SystemExit  # exit_json never returns; type checkers cannot know


def run_computation(
    argument_spec: dict[str, Any],
    key: str,
    compute: Callable[[dict[str, Any]], Any],
    refusal: type[Exception],
) -> NoReturn:
    """Return `compute(params)` under `key`, or fail with the refusal's own text."""
    module = AnsibleModule(argument_spec=argument_spec, supports_check_mode=True)
    try:
        value = compute(module.params)
    except refusal as error:
        module.fail_json(msg=str(error))
        raise SystemExit from error
    module.exit_json(changed=False, **{key: value})
    raise SystemExit
