"""What the network and the limits let be is judged by the policy that was in force at the event."""

from __future__ import annotations

import pytest
from build import OFFSET_NS, SANDBOX, Story, agent, policy

from invigilator.detectors.engine import Engine
from invigilator.detectors.tenures import ABOUT_TO, UnknownPolicyError
from invigilator.ebpf.events import EventBatch, Kind
from invigilator.incidents.records import Incident
from invigilator.profiles.canonical import policy_versions
from invigilator.profiles.policy import EgressRule, Limits, Network, Policy


def allowing(host: str, **more: object) -> Policy:
    return policy(network=Network(egress=[EgressRule(name="one", target=host, ports=[443])]), **more)


ONE, TWO = allowing("93.184.216.1"), allowing("93.184.216.2")
LATER = {policy_versions(TWO).confinement: TWO}


def changes(story: Story, to: Policy, **fields: int) -> Story:
    return story.add(Kind.POLICY, pid=0, text=policy_versions(to).confinement, **fields)


def judged(story: Story, cut: int = 0, later: dict[str, Policy] | None = LATER) -> list[Incident]:
    batch = story.batch()
    engine = Engine(ONE, SANDBOX, OFFSET_NS, later)
    for part in (batch.records[:cut], batch.records[cut:]):
        engine.feed(EventBatch(part.copy(), batch.strings))
    return engine.incidents()


def places(incidents: list[Incident]) -> list[int]:
    """The `seq` of each event of evidence."""
    return [int(fact["event"].rpartition("/")[2]) for one in incidents for fact in one.evidence]


def both(story: Story) -> Story:
    return story.connect("93.184.216.1", 443).connect("93.184.216.2", 443)


@pytest.mark.parametrize("cut", range(10))
def test_each_connect_is_judged_by_the_policy_of_its_moment_wherever_batches_end(cut: int) -> None:
    story = both(agent())
    changes(story, TWO, a0=ABOUT_TO)
    both(story)
    changes(story, TWO)
    both(story)
    changes(story, ONE)
    both(story)
    found = judged(story, cut)
    # Of the pair between "about to be" and "is" neither is held against it.
    assert [one.count for one in found] == [3]
    assert places(found) == [3, 8, 12]
    assert found == judged(story)


def test_without_the_later_policies_the_first_judges_all() -> None:
    story = both(changes(both(agent()), TWO))
    assert places(judged(story, later=None)) == [3, 6]


def test_a_policy_whose_text_is_not_known_is_an_error_and_no_silent_verdict() -> None:
    with pytest.raises(UnknownPolicyError, match="sha256:"):
        judged(changes(agent(), TWO), later={})


def test_the_output_limit_is_that_of_the_moment() -> None:
    small = allowing("93.184.216.1", limits=Limits(output_bytes=1000))
    story = agent().add(Kind.OUTPUT, a0=900).add(Kind.OUTPUT, a0=900)
    assert judged(story) == []
    changes(story, small).add(Kind.OUTPUT, a0=1)
    (found,) = judged(story, later={policy_versions(small).confinement: small})
    assert (found.kind, found.count) == ("log_flood", 1)
