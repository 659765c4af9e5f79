from jaxagent.rollout.seats import Seats

GROUPS = [["a0", "a1", "a2"], ["b0", "b1", "b2"], ["c0", "c1", "c2"]]


def test_groups_stay_on_a_replica_and_come_in_order():
    seats = Seats(4, replicas=2, groups=GROUPS)
    assert list(seats.seated()) == [("a0", 0), ("b0", 2), ("a1", 1), ("b1", 3)]
    assert list(seats.seated()) == []
    seats.leave(3)
    assert list(seats.seated()) == [("b2", 3)]
    seats.leave(2)
    assert list(seats.seated()) == [("c0", 2)]
    seats.leave(0)
    seats.leave(1)
    assert list(seats.seated()) == [("a2", 0)]
    seats.leave(0)
    assert list(seats.seated()) == [], "the third replica-mate of c waits for its own replica"
    seats.leave(2)
    assert list(seats.seated()) == [("c1", 2)]


def test_one_replica_is_first_come_first_served():
    seats = Seats(2, replicas=1, groups=GROUPS)
    order = []
    while taken := list(seats.seated()):
        order += [entry for entry, _ in taken]
        for _, slot in taken:
            seats.leave(slot)
    assert order == sum(GROUPS, [])
