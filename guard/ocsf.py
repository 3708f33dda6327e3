"""The record in the words of the Open Cybersecurity Schema Framework, 1.8.0 (schema.ocsf.io).

Incidents are Detection Findings (class 2004). Events are Process Activity (1007), File System Activity (1001)
and Network Activity (4001); kinds that none of these has an activity for are left out (`None`). The sandbox
is the device, or an end of the connection. What has no place in the schema stands under `unmapped`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from invigilator.guard.release import version

OCSF_VERSION = "1.8.0"
SEVERITY = {"info": 1, "low": 2, "medium": 3, "high": 4, "critical": 5}
STATUS = {"": 1, "confirm": 2, "dismiss": 3}
"""Of a finding: new, in progress, suppressed."""
VIRTUAL = 6
"""Type of a device."""
RULE = 1
"""Type of an analytic."""
PROCESS = {"exec": 1, "exit": 2, "fork": 1, "ptrace": 3, "vm_access": 3}
"""Activities of a process: launch, terminate, open."""
FILE = {
    "open": 14,
    "read": 2,
    "write": 3,
    "mmap_write": 3,
    "truncate": 3,
    "fallocate": 3,
    "clone_range": 3,
    "exchange_range": 3,
    "copy_range": 3,
    "mkdir": 1,
    "mknod": 1,
    "link": 1,
    "symlink": 1,
    "unlink": 4,
    "rename": 5,
    "chmod": 6,
    "chown": 6,
    "xattr": 6,
    "utimes": 6,
}
"""Activities of a file: create, read, update, delete, rename, set attributes, open."""
NETWORK = {"connect": 1, "send": 6, "listen": 7, "accept": 1, "net_denied": 5}
"""Activities of a network: open, refuse, traffic, listen."""
FORMATS = {0o100000: 1, 0o040000: 2, 0o020000: 3, 0o060000: 4, 0o010000: 5, 0o140000: 6, 0o120000: 7}
"""Type of a file by the format bits of its mode: regular, folder, character and block device, pipe, socket,
link."""
CREATED = 1 << 5
"""FLAG_CREATED of ebpf/src/event.h."""
SUCCESS, FAILURE = 1, 2


def finding(incident: Mapping[str, Any]) -> dict[str, Any]:
    """An exported incident as a Detection Finding."""
    attacks = [{"technique": {"uid": uid}} for uid in incident["attack"]]
    evidences = [{"data": json.loads(text)} for text in incident["evidence"]]
    info = {
        "uid": incident["incident_id"],
        "title": incident["kind"],
        "desc": incident["summary"],
        "types": [incident["channel"]],
        "first_seen_time": milliseconds(incident["first_at"]),
        "last_seen_time": milliseconds(incident["last_at"]),
        "analytic": {
            "type_id": RULE,
            "uid": incident["detector_id"],
            "name": incident["detector_id"],
            "version": str(incident["detector_version"]),
        },
    }
    made = {
        **base(2004, 2, 1, milliseconds(incident["last_at"]), SEVERITY.get(incident["severity"], 0)),
        "finding_info": info | ({"attacks": attacks} if attacks else {}),
        "message": incident["summary"],
        "count": incident["count"],
        "confidence_score": round(100 * incident["confidence"]),
        "status_id": STATUS.get(incident["review"], 0),
        "start_time": milliseconds(incident["first_at"]),
        "end_time": milliseconds(incident["last_at"]),
        "device": device(incident),
        "unmapped": {
            name: incident[name]
            for name in (
                *(
                    "run_id",
                    "rollout_id",
                    "attempt",
                    "outcome",
                    "use",
                    "intent",
                    "phase",
                    "step_id",
                    "counted",
                ),
                *("weight", "monitor_only", "detection_version", "penalty_version", "revision", "reviewer"),
            )
        },
    }
    return made | ({"evidences": evidences} if evidences else {})


def activity(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """An exported event as an activity; None where the schema has no class for its kind."""
    kind = event["kind"]
    if kind in PROCESS:
        return process_activity(event)
    if kind in FILE:
        return file_activity(event)
    if kind in NETWORK and (event["ip"] or event["port"]):
        return network_activity(event)
    return None


def process_activity(event: Mapping[str, Any]) -> dict[str, Any]:
    """An exec, exit, fork or look into another process."""
    kind = event["kind"]
    target = process(event, event["path"] if kind == "exec" else event["exe"])
    if kind == "exec" and event["text"]:
        target["cmd_line"] = words(event["text"].replace(b"\0", b" "))
    if kind in ("ptrace", "vm_access"):
        target = {"pid": small(event["a1"])}
    return {
        **base(1007, 1, PROCESS[kind], milliseconds(event["wall_time"]), 1),
        **outcome(event),
        "process": target,
        "actor": actor(event),
        "device": device(event),
    }


def file_activity(event: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to a file."""
    number = 1 if event["flags"] & CREATED else FILE[event["kind"]]
    made = {
        **base(1001, 1, number, milliseconds(event["wall_time"]), 1),
        **outcome(event),
        "file": file(event["path"], event["mode"], event["size"]),
        "actor": actor(event),
        "device": device(event),
    }
    return made | ({"file_result": file(event["path2"])} if event["kind"] == "rename" else {})


def network_activity(event: Mapping[str, Any]) -> dict[str, Any]:
    """A connection, datagram or listening socket."""
    socket = {name: event[name] for name in ("ip", "port") if event[name]}
    box = {"uid": event["sandbox_id"]}
    far, near = (box, box | socket) if event["kind"] == "listen" else (socket if "ip" in socket else box, box)
    inward = event["kind"] in ("listen", "accept")
    ends = (far, near) if inward else (near, far)
    return {
        **base(4001, 4, NETWORK[event["kind"]], milliseconds(event["wall_time"]), 1),
        **outcome(event),
        **dict(zip(("src_endpoint", "dst_endpoint"), ends, strict=True)),
        "connection_info": {"direction_id": 1 if inward else 2, "protocol_num": event["protocol"]},
    }


def base(
    class_uid: int, category_uid: int, activity_id: int, time_ms: int, severity_id: int
) -> dict[str, Any]:
    """What every class has."""
    return {
        "category_uid": category_uid,
        "class_uid": class_uid,
        "activity_id": activity_id,
        "type_uid": class_uid * 100 + activity_id,
        "time": time_ms,
        "severity_id": severity_id,
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "Invigilator", "vendor_name": "Invigilator", "version": version()},
        },
    }


def outcome(event: Mapping[str, Any]) -> dict[str, Any]:
    """How a call ended, which event it was, and where in its rollout."""
    failed = event["result"] < 0
    return {
        "status_id": FAILURE if failed else SUCCESS,
        **({"status_code": str(-event["result"])} if failed else {}),
        "unmapped": {
            name: event[name]
            for name in (
                "kind",
                "seq",
                "run_id",
                "rollout_id",
                "attempt",
                "phase",
                "origin_phase",
                "actor",
                "step",
            )
        },
    }


def device(row: Mapping[str, Any]) -> dict[str, Any]:
    """The sandbox."""
    return {"type_id": VIRTUAL, "uid": row["sandbox_id"], "name": f"sandbox {row['sandbox_id']}"}


def actor(event: Mapping[str, Any]) -> dict[str, Any]:
    """Who did it."""
    return {"process": process(event, event["exe"]), "user": {"uid": str(event["uid"])}}


def process(event: Mapping[str, Any], executable: bytes) -> dict[str, Any]:
    """The process of an event, by number, start and executable."""
    made: dict[str, Any] = {"pid": small(event["pid"]), "uid": f"{event['pid']}-{event['start_ns']}"}
    if executable:
        made["file"] = file(executable)
        made["name"] = made["file"]["name"]
    return made


def file(path: bytes, mode: int = 0o100000, size: int | None = None) -> dict[str, Any]:
    """A file by its path."""
    name = path.rsplit(b"/", 1)[-1] or path
    made: dict[str, Any] = {
        "name": words(name),
        "path": words(path),
        "type_id": FORMATS.get(mode & 0o170000, 0),
    }
    if size is not None and size < 1 << 63:
        made["size"] = size
    return made


def words(text: bytes) -> str:
    """Any bytes as a string that every reader takes; what is no UTF-8 is written as `\\xNN`."""
    return text.decode("utf-8", "backslashreplace")


def small(number: int) -> int:
    """A number as the schema's 32-bit integer."""
    return number & 0x7FFFFFFF


def milliseconds(moment: datetime | int) -> int:
    """A time as the schema has it; whole numbers are nanoseconds since 1970."""
    if isinstance(moment, datetime):
        return round(moment.timestamp() * 1000)
    return moment // 1_000_000
