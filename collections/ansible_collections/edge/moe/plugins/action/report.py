# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the fleet's report on the controller, where the result files, jinja2 and matplotlib are."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.edge.moe.plugins.plugin_utils import _page


def read_text(path: Path) -> str | None:
    """None where there is no file, or one that no report ever was."""
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def write_text(path: Path, text: str) -> None:
    """Replace the file at once, so that nobody opens half a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            os.fchmod(stream.fileno(), 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def difference(path: Path, before: str | None, after: str) -> dict[str, str]:
    """The figures line by line; of the page, which holds the same figures, only that it is another."""
    if path.suffix == ".md":
        return {"before": before or "", "after": after, "before_header": str(path), "after_header": str(path)}
    was = "there was none" if before is None else f"{len(before):,} characters"
    return {"prepared": f"{path}: {was}, now {len(after):,} characters\n"}


class ActionModule(ActionBase):
    _supports_async = False
    _supports_check_mode = True
    _supports_diff = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            {
                "results": {"type": "path", "required": True},
                "dest": {"type": "path", "required": True},
                "hosts": {"type": "list", "elements": "str", "default": []},
                "compare": {"type": "list", "elements": "path", "default": []},
            }
        )
        dest = Path(args["dest"])
        try:
            texts, hosts, left_out, unreadable = _page.made(
                Path(args["results"]), args["hosts"], [Path(path) for path in args["compare"]]
            )
            before = {name: read_text(dest / name) for name in texts}
            written = [name for name in texts if texts[name] != before[name]]
            if not self._task.check_mode:
                for name in written:
                    write_text(dest / name, texts[name])
        except _page.PageError as error:
            raise AnsibleActionFail(str(error)) from None
        except OSError as error:
            raise AnsibleActionFail(
                f"dest is {dest} and the report cannot be written there ({error.strerror}: {error.filename}): "
                "name a folder of the user that runs ansible-playbook"
            ) from None
        if left_out and (dest / _page.PAGE).exists():
            left_out += f"; {dest / _page.PAGE} is of an earlier run"
        result: dict[str, Any] = {
            "changed": bool(written),
            "page": str(dest / _page.PAGE) if _page.PAGE in texts else None,
            "markdown": str(dest / _page.MARKDOWN) if texts else None,
            "hosts": hosts,
            "left_out": left_out,
            "warnings": unreadable,
        }
        if self._task.diff:
            result["diff"] = [difference(dest / name, before[name], texts[name]) for name in written]
        return result
