# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module in the background of the target and show how far it is."""

from __future__ import annotations

import json
import os
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()
TAIL_LINES = 40


def shell_path(path: str) -> str:
    """Quoted for the target's shell, with a leading ~ still meaning its home."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


class ActionModule(ActionBase):
    _supports_async = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            {
                "module": {"type": "str", "required": True},
                "args": {"type": "dict", "default": {}},
                "progress_file": {"type": "str", "required": True},
                "progress": {"type": "str", "choices": ["last_line", "size", "count"], "default": "last_line"},
                "pattern": {"type": "str", "default": ""},
                "noun": {"type": "str", "default": ""},
                "total": {"type": "int", "default": 0},
                "every_s": {"type": "int", "default": 15},
                "timeout_s": {"type": "int", "default": 14400},
            }
        )
        if self._task.check_mode:
            return {"changed": True, "msg": f"{args['module']} would run"}
        if args["progress"] == "count":  # what an earlier run left would be counted as well
            self._low_level_execute_command(f"rm -f {shell_path(args['progress_file'])}")
        self._task.async_val = args["timeout_s"]
        name, module_args = args["module"], dict(args["args"])
        if name in ("ansible.builtin.shell", "ansible.builtin.command"):
            # these two names are one module and an action plugin that picks the mode
            module_args["_uses_shell"] = name.endswith("shell")
            module_args["_raw_params"] = module_args.pop("cmd", None)
            name = "ansible.legacy.command"
        started = time.monotonic()
        job = self._execute_module(module_name=name, module_args=module_args, task_vars=task_vars, wrap_async=True)
        if "ansible_job_id" not in job:
            return job
        self._task.async_val = 0
        host = self._task.delegate_to or (task_vars or {}).get("inventory_hostname", "")
        self._wait(job["results_file"], args, host, started)
        status_args = {"jid": job["ansible_job_id"], "_async_dir": os.path.dirname(job["results_file"])}
        result = self._execute_module("ansible.legacy.async_status", dict(status_args), task_vars=task_vars)
        self._execute_module("ansible.legacy.async_status", {**status_args, "mode": "cleanup"}, task_vars=task_vars)
        for internal in ("ansible_job_id", "results_file", "started", "finished", "_ansible_suppress_tmpdir_delete"):
            result.pop(internal, None)
        result["attended_s"] = int(time.monotonic() - started)
        if (result.get("failed") or result.get("rc", 0)) and args["progress"] == "last_line":
            result["failed"] = True
            tail = self._low_level_execute_command(f"tail -n {TAIL_LINES} {shell_path(args['progress_file'])}")
            result["log_tail"] = tail["stdout"].splitlines()
        return result

    def _wait(self, results_file: str, args: dict[str, Any], host: str, started: float) -> None:
        """Return when the job has ended. Looks with `cat`: a module for each look would cost a small board dear."""
        pause, spoken = 1.0, started
        while True:
            time.sleep(pause)
            pause = min(pause * 1.3, 5.0)
            text = self._low_level_execute_command(f"cat {shell_path(results_file)}")["stdout"]
            try:
                if "started" not in json.loads(text):
                    return
            except ValueError:
                pass  # looked while it was being written
            now = time.monotonic()
            if now - started > args["timeout_s"] + 60:
                raise AnsibleActionFail(f"{args['module']} did not end within {args['timeout_s']} s.")
            if now - spoken >= args["every_s"]:
                spoken = now
                self._speak(args, host, int(now - started))

    def _speak(self, args: dict[str, Any], host: str, elapsed: int) -> None:
        path = shell_path(args["progress_file"])
        command = {
            "last_line": f"tail -n 1 {path}",
            "size": f"stat -c %s {path}",
            "count": f"grep -o -e {shlex.quote(args['pattern'])} {path} | wc -l",
        }[args["progress"]]
        shown = self._low_level_execute_command(command)["stdout"].strip()[-100:]
        if args["progress"] != "last_line":
            scale, noun = (1024**2, "MiB") if args["progress"] == "size" else (1, args["noun"])
            shown = f"{int(shown) / scale if shown.isdigit() else 0:,.0f}"
            if args["total"]:
                shown += f" of {args['total'] / scale:,.0f}"
            shown += f" {noun}"
        display.display(f"   {host}: {elapsed // 60}:{elapsed % 60:02d}  {shown or 'no output yet'}")
