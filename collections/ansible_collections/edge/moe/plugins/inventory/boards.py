# Copyright: edge.moe contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

DOCUMENTATION = r"""
name: boards
short_description: A fleet of Jetson boards from addresses, grouped by what each board says it is
version_added: 1.0.0
description:
  - Takes hosts, ranges and networks, asks each address over SSH what it is, and groups those that are a Jetson by
    board, L4T release and memory. No address is touched that is not named, and nothing is installed or written on a
    board.
  - The groups are C(jetson), the board (C(orin_nano_8gb)), the release (C(l4t_36_4_7)) and the memory (C(memory_8gb));
    C(other) holds machines that are no Jetson, and C(unreachable) those that gave no answer, each with the reason in
    C(edge_moe_probe).
  - A host key has to be known already; one that is not is refused and never learnt.
  - Variables in C(host_vars) and C(group_vars) beside the inventory win over what the plugin sets. They are read after
    the boards were asked, so a port or user that the question itself needs stands in O(hosts).
  - With a cache (see O(cache)) a board that has answered is not asked again until the cache expires; one that has not
    is asked each time.
author:
  - edge.moe contributors (@edge-moe)
requirements:
  - netaddr
  - paramiko
extends_documentation_fragment:
  - constructed
  - inventory_cache
options:
  plugin:
    description: Marks the file as one for this plugin. The file's name ends in C(boards.yml) or C(boards.yaml).
    required: true
    choices: [edge.moe.boards]
  hosts:
    description:
      - >-
        Whom to ask. Text can be a name, names with a number (C(board[01:20].example.com)), an address, a range
        (C(192.0.2.11-192.0.2.20) or C(192.0.2.11-20)) or a network (C(192.0.2.0/27)).
      - A mapping with C(name) and, where they differ, C(address), C(port) and C(user), gives one board a name.
    type: list
    elements: raw
    required: true
  exclude:
    description: Addresses, ranges and networks that are left out.
    type: list
    elements: str
    default: []
  max_hosts:
    description: Most hosts that the file may name. It protects from a slip in a network's length.
    type: int
    default: 1024
  port:
    description: Port of the SSH servers.
    type: int
    default: 22
  user:
    description: User on the boards; becomes C(ansible_user). Without it SSH's own default is used.
    type: str
  private_key_file:
    description: Key to log in with. Without it the agent's keys and those in C(~/.ssh) are tried.
    type: path
  known_hosts:
    description: Files with the host keys that are known.
    type: list
    elements: str
    default: [~/.ssh/known_hosts, /etc/ssh/ssh_known_hosts]
  connect_timeout:
    description: Seconds that a connection may take.
    type: float
    default: 5
  timeout:
    description: Seconds that one board may take in all.
    type: float
    default: 15
  at_once:
    description: Most boards that are asked at the same time.
    type: int
    default: 16
"""

EXAMPLES = r"""
# fleet.boards.yml: all boards of two shelves and one with a name, asked at most once an hour
plugin: edge.moe.boards
user: jetson
hosts:
  - 192.0.2.16/28
  - 192.0.2.101-120
  - {name: kitchen, address: 192.0.2.11}
exclude: [192.0.2.17]
# a board that has answered is remembered for an hour
cache: true
cache_plugin: ansible.builtin.jsonfile
cache_connection: ~/.cache/edge-moe/inventory
cache_timeout: 3600
# a group of one's own
groups:
  old_release: edge_moe_probe.l4t is not none and edge_moe_probe.l4t is version('36.4.4', '<')
"""

from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Cacheable, Constructable
from ansible_collections.edge.moe.plugins.module_utils import _boards
from ansible_collections.edge.moe.plugins.plugin_utils import _ssh_probe, _targets


class InventoryModule(BaseInventoryPlugin, Constructable, Cacheable):
    NAME = "edge.moe.boards"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(("boards.yml", "boards.yaml"))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        missing = _targets.MISSING or _ssh_probe.MISSING
        if missing:
            raise AnsibleParserError(f"edge.moe.boards needs netaddr and paramiko on the controller: {missing}")
        self._read_config_data(path)
        try:
            targets = _targets.expand(
                self.get_option("hosts"),
                self.get_option("exclude"),
                self.get_option("port"),
                self.get_option("user"),
                self.get_option("max_hosts"),
            )
        except _targets.TargetError as error:
            raise AnsibleParserError(f"{path}: {error}") from error
        answers = self._answers(targets, path, cache)
        for target in targets:
            self._add(target, answers[target.name])

    def _answers(self, targets: list[_targets.Target], path: str, cache: bool) -> dict[str, dict[str, Any]]:
        """By name; what the cache knows of exactly this target is taken from there."""
        cache_key = self.get_cache_key(path)
        stored: dict[str, Any] = {}
        if self.get_option("cache") and cache:
            try:
                stored = self._cache[cache_key]
            except KeyError:
                stored = {}
        known = {
            target.name: stored[target.name]["answer"]
            for target in targets
            if isinstance(stored.get(target.name), dict) and stored[target.name].get("target") == list(target)
        }
        key_file = self.get_option("private_key_file")
        access = _ssh_probe.Access(
            known_hosts=tuple(self.get_option("known_hosts")),
            key_files=(key_file,) if key_file else (),
            agent=not key_file,
            connect_s=self.get_option("connect_timeout"),
            total_s=self.get_option("timeout"),
        )
        asked = [target for target in targets if target.name not in known]
        answers = known | _ssh_probe.probe_all(asked, access, self.get_option("at_once"))
        if self.get_option("cache"):
            # A board that is off now may be on in a minute: only what answered is worth remembering.
            self._cache[cache_key] = {
                target.name: {"target": list(target), "answer": answers[target.name]}
                for target in targets
                if answers[target.name]["reachable"]
            }
        return answers

    def _add(self, target: _targets.Target, answer: dict[str, Any]) -> None:
        name = target.name
        self.inventory.add_host(name)
        if target.address != name:
            self.inventory.set_variable(name, "ansible_host", target.address)
        if target.port != 22:
            self.inventory.set_variable(name, "ansible_port", target.port)
        if target.user:
            self.inventory.set_variable(name, "ansible_user", target.user)
        key_file = self.get_option("private_key_file")
        if key_file:
            self.inventory.set_variable(name, "ansible_ssh_private_key_file", key_file)
        self.inventory.set_variable(name, "edge_moe_probe", answer)
        groups = _boards.groups_of(answer) if answer["reachable"] else ["unreachable"]
        for group in groups:
            self.inventory.add_group(group)
            self.inventory.add_host(name, group=group)
        if not answer["reachable"]:
            self.display.warning(f"{name}: {answer['reason']}")
        strict = self.get_option("strict")
        variables = self.inventory.get_host(name).get_vars()
        self._set_composite_vars(self.get_option("compose"), variables, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), variables, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), variables, name, strict=strict)
