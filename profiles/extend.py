"""Which policy extends which: the child's tree over its parent's.

Mappings are merged key by key; everything else of the child replaces the parent's. In a list the entry `...`
stands for the parent's entries: `deny: [..., mount]` is the parent's list and mount.
"""

from __future__ import annotations

from invigilator.profiles.errors import Place, PolicyError
from invigilator.profiles.source import Listing, Node, Scalar, Table

REST = "..."


def merge(parent: Node, child: Node) -> Node:
    """The child over the parent; every node keeps the place where it was written."""
    if isinstance(parent, Table) and isinstance(child, Table):
        items = dict(parent.items)
        for key, item in child.items.items():
            items[key] = merge(parent.items[key], item) if key in parent.items else without_rest(item)
        return Table(items, {**parent.places, **child.places}, child.place)
    if isinstance(child, Listing):
        return _spread(parent, child)
    return child


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


def _spread(parent: Node, child: Listing) -> Listing:
    items: list[Node] = []
    for item in child.items:
        if not _is_rest(item):
            items.append(without_rest(item))
        elif isinstance(parent, Listing):
            items += parent.items
        else:
            raise _no_parent(item.place)
    return Listing(tuple(items), child.place)


def _is_rest(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and node.value == REST


def _no_parent(place: Place) -> PolicyError:
    return PolicyError.at(place, "`...` stands for the parent's entries, and there are none", "remove it")
