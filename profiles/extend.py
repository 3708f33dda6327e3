"""Which policy extends which: the child's tree over its parent's.

Mappings are merged key by key; everything else of the child replaces the parent's. In a list the entry `...`
stands for the parent's entries: `deny: [..., mount]` is the parent's list and mount. In a phase, whose rules
are differences, it stands for the policy's own entries where the parent has no such list for the phase.
"""

from __future__ import annotations

from invigilator.profiles.errors import Place, PolicyError
from invigilator.profiles.source import Listing, Node, Scalar, Table

REST = "..."


def merge(parent: Node, child: Node) -> Node:
    """The child over the parent; nodes keep their places, and `...` stays where there is no parent yet."""
    if isinstance(parent, Table) and isinstance(child, Table):
        items = dict(parent.items)
        for key, item in child.items.items():
            items[key] = merge(parent.items[key], item) if key in parent.items else item
        return Table(items, {**parent.places, **child.places}, child.place)
    if isinstance(parent, Listing) and isinstance(child, Listing):
        return _spread(parent, child)
    return child


def fill_phases(root: Table) -> Table:
    """`...` in the lists of a phase's parts as the policy's own entries."""
    phases = root.items.get("phases")
    if not isinstance(phases, Table):
        return root
    filled = {name: _fill_phase(root, phase) for name, phase in phases.items.items()}
    return _replaced(root, "phases", Table(filled, phases.places, phases.place))


def _fill_phase(root: Table, phase: Node) -> Node:
    if not isinstance(phase, Table):
        return phase
    items = dict(phase.items)
    for part in ("network", "syscalls", "apparmor", "seccomp"):
        own, general = items.get(part), root.items.get(part)
        if isinstance(own, Table) and isinstance(general, Table):
            lists = {
                key: merge(general.items[key], item)
                for key, item in own.items.items()
                if key in general.items
            }
            items[part] = Table({**own.items, **lists}, own.places, own.place)
    return Table(items, phase.places, phase.place)


def without_rest(node: Node) -> Node:
    """`node`, which has no parent; PolicyError where it speaks of one's entries."""
    if isinstance(node, Table):
        return Table({key: without_rest(item) for key, item in node.items.items()}, node.places, node.place)
    if isinstance(node, Listing):
        for item in node.items:
            if _is_rest(item):
                raise _no_parent(item.place)
        return Listing(tuple(without_rest(item) for item in node.items), node.place)
    return node


def drop_rest(node: Node) -> Node:
    """`node` without the entries `...`, to check a file by itself."""
    if isinstance(node, Table):
        return Table({key: drop_rest(item) for key, item in node.items.items()}, node.places, node.place)
    if isinstance(node, Listing):
        return Listing(tuple(drop_rest(item) for item in node.items if not _is_rest(item)), node.place)
    return node


def expand_classes(root: Table) -> Table:
    """Bare lists of `filesystem.protected` as mappings with `paths`, so that classes merge key by key."""
    files = root.items.get("filesystem")
    if not isinstance(files, Table) or not isinstance(classes := files.items.get("protected"), Table):
        return root
    expanded = {name: _as_table(item) for name, item in classes.items.items()}
    files = _replaced(files, "protected", Table(expanded, classes.places, classes.place))
    return _replaced(root, "filesystem", files)


def _as_table(item: Node) -> Node:
    return Table({"paths": item}, {"paths": item.place}, item.place) if isinstance(item, Listing) else item


def _replaced(table: Table, key: str, node: Node) -> Table:
    return Table({**table.items, key: node}, table.places, table.place)


def _spread(parent: Listing, child: Listing) -> Listing:
    rest = [item for item in child.items if _is_rest(item)]
    if len(rest) > 1:
        # Doubled at each of several levels, it would grow without bound.
        raise PolicyError.at(rest[1].place, "`...` stands here twice", "keep one of the two")
    items: list[Node] = []
    for item in child.items:
        items += parent.items if _is_rest(item) else [item]
    return Listing(tuple(items), child.place)


def _is_rest(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and node.value == REST


def _no_parent(place: Place) -> PolicyError:
    return PolicyError.at(place, "`...` stands for the parent's entries, and there are none", "remove it")
