//! Waiting receivers: the end of a wait, what wakes it, and what a dropped one leaves.
use super::*;
use crate::queue::QueueFuture;

/// Time within which a backend with `Push` wakes a receiver.
const PROMPT: Duration = Duration::from_secs(2);
/// The same for servers on a busy machine: less than any backend waits until it looks by itself.
const PROMPT_OF_SERVERS: Duration = Duration::from_secs(10);
/// Time within which a receiver notices a message by polling.
const POLLED: Duration = Duration::from_secs(30);
/// Wait of a receive that shall not end by itself.
const LONG: Duration = Duration::from_secs(600);

type Received<'a> = QueueFuture<'a, Vec<Delivery>>;

/// Begins a receive that waits for longer than any test.
async fn begin_wait<'a>(fixture: &Fixture<dyn Queue>, queue: &'a dyn Queue, visibility: Duration) -> Received<'a> {
    let mut waits = queue.receive(Receive::new(1, visibility).wait(LONG));
    still_waits(fixture, a_while() / 10, &mut waits).await;
    waits
}

/// Lets some time pass, during which the receive does not end.
async fn still_waits(fixture: &Fixture<dyn Queue>, time: Duration, waits: &mut Received<'_>) {
    if let First::Other(taken) = race(fixture.pass(time), &mut *waits).await {
        panic!("the receive ended before its wait was over, and without a message: {:?}", ok(taken));
    }
}

/// Returns the time within which a waiting receiver has noticed a message.
fn noticed(fixture: &Fixture<dyn Queue>) -> Duration {
    // Without a notification between the handles, the receiver polls.
    let prompt = if fixture.is_on_manual_time() { PROMPT } else { PROMPT_OF_SERVERS };
    if fixture.port().capabilities().has(Capability::Push) { prompt } else { POLLED }
}

/// Returns the messages of a receive that has begun to wait, and to which one has become visible.
async fn woken(fixture: &Fixture<dyn Queue>, waits: Received<'_>, what: &str) -> Vec<Delivery> {
    let taken = ok(fixture.within(noticed(fixture), &format!("a wait for {what}"), waits).await);
    assert!(!taken.is_empty(), "the receive returned nothing, although there is {what}");
    taken
}

// Guarantee: queue 5.
/// A waiting receiver gets a message that the other handle sends; with `Push`, long before its wait
/// is over.
pub async fn a_waiting_receiver_is_woken(fixture: &Fixture<dyn Queue>) {
    for (handle, other) in [(fixture.port(), fixture.other()), (fixture.other(), fixture.port())] {
        for sends in [other, handle] {
            let waits = begin_wait(fixture, handle, MINUTE * 5).await;
            send(sends, &["a"]).await;
            let taken = woken(fixture, waits, "a message that was sent").await;
            assert_eq!(bodies(&taken), ["a"]);
            ok(handle.complete(&taken[0].receipt).await);
        }
    }
}

// Guarantee: queue 5.
/// A waiting receiver gets a message whose visibility time-out expires.
pub async fn a_waiting_receiver_sees_what_comes_back(fixture: &Fixture<dyn Queue>) {
    send(fixture.port(), &["a"]).await;
    let _held = one(fixture.other(), a_while()).await;
    let waits = begin_wait(fixture, fixture.port(), MINUTE).await;
    assert_eq!(woken(fixture, waits, "a message whose delivery expired").await[0].deliveries, 2);
}

// Guarantee: queue 5.
/// A waiting receiver gets a message that is abandoned or released, and one whose extension
/// shortens its time.
pub async fn a_waiting_receiver_sees_what_is_given_back(fixture: &Fixture<dyn Queue>) {
    let other = fixture.other();
    send(fixture.port(), &["a"]).await;
    let first = one(other, MINUTE * 5).await;
    let waits = begin_wait(fixture, fixture.port(), MINUTE * 5).await;
    ok(other.abandon(&first.receipt, Duration::ZERO).await);
    let second = woken(fixture, waits, "an abandoned message").await.remove(0);
    let waits = begin_wait(fixture, fixture.port(), MINUTE * 5).await;
    ok(other.release(&second.receipt, a_while()).await);
    let third = woken(fixture, waits, "a released message").await.remove(0);
    let waits = begin_wait(fixture, fixture.port(), MINUTE * 5).await;
    ok(other.extend(&third.receipt, a_while()).await);
    assert_eq!(woken(fixture, waits, "a message whose time was shortened").await[0].deliveries, 4);
}

// Guarantee: queue 5.
/// A waiting receiver gets a message whose delay is over.
pub async fn a_waiting_receiver_sees_a_delayed_message(fixture: &Fixture<dyn Queue>) {
    if !fixture.port().capabilities().has(Capability::Delay) {
        return;
    }
    let waits = begin_wait(fixture, fixture.port(), MINUTE).await;
    ok(fixture.other().send_one(Message::new("a").delay(a_while())).await);
    assert_eq!(bodies(&woken(fixture, waits, "a message whose delay is over").await), ["a"]);
}

// Guarantee: queue 5.
/// A waiting receiver gets the next message of a group whose first one is completed, or becomes a
/// dead letter.
pub async fn a_waiting_receiver_sees_the_next_of_a_group(fixture: &Fixture<dyn Queue>) {
    let (queue, other) = (fixture.port(), fixture.other());
    if !queue.capabilities().has(Capability::Groups) {
        return;
    }
    ok(queue.send(["1", "2", "3"].map(|body| Message::new(body).group("g")).into()).await);
    let first = one(other, MINUTE * 5).await;
    let waits = begin_wait(fixture, queue, MINUTE * 5).await;
    ok(other.complete(&first.receipt).await);
    let second = woken(fixture, waits, "the next message of a group").await.remove(0);
    let waits = begin_wait(fixture, queue, MINUTE * 5).await;
    ok(other.dead_letter(&second.receipt, "no").await);
    assert_eq!(bodies(&woken(fixture, waits, "the next message of a group").await), ["3"]);
}

// Guarantee: queue 8.
/// A receiver that waits at the dead letters gets a message that becomes one.
pub async fn a_receiver_that_waits_for_dead_letters_is_woken(fixture: &Fixture<dyn Queue>) {
    let letters = dead(fixture.port());
    send(fixture.port(), &["a"]).await;
    let delivery = one(fixture.other(), MINUTE).await;
    let waits = begin_wait(fixture, &*letters, MINUTE).await;
    ok(fixture.other().dead_letter(&delivery.receipt, "no").await);
    assert_eq!(bodies(&woken(fixture, waits, "a dead letter").await), ["a"]);
}

// Guarantee: queue 5.
/// Several messages that arrive at once reach as many waiting receivers.
pub async fn each_of_several_waiting_receivers_gets_a_message(fixture: &Fixture<dyn Queue>) {
    let (port, other) = (fixture.port(), fixture.other());
    let begin = |queue| begin_wait(fixture, queue, MINUTE * 5);
    let (a, b, c, d) = (begin(port).await, begin(other).await, begin(port).await, begin(other).await);
    send(other, &["1", "2", "3", "4"]).await;
    // All are polled, also while another one is awaited.
    let done = both(both(a, b), both(c, d));
    let ((a, b), (c, d)) = fixture.within(noticed(fixture), "a wait of four receivers for four messages", done).await;
    let mut all = bodies(&[ok(a), ok(b), ok(c), ok(d)].concat());
    all.sort_unstable();
    assert_eq!(all, ["1", "2", "3", "4"]);
}

// Guarantee: queue 5.
/// A wait without a message ends with an empty result, neither early nor much later.
pub async fn a_wait_that_is_over_gives_nothing(fixture: &Fixture<dyn Queue>) {
    let mut waits = fixture.port().receive(Receive::new(1, MINUTE).wait(a_while() * 4));
    still_waits(fixture, a_while() * 3, &mut waits).await;
    assert_eq!(ok(fixture.within(a_while() * 15, "a wait", waits).await), []);
}

// Guarantee: queue 5.
/// A message that is visible when the wait ends is returned, also by a receiver that polls seldom.
pub async fn a_wait_does_not_end_with_nothing_while_a_message_is_visible(fixture: &Fixture<dyn Queue>) {
    let mut waits = fixture.port().receive(Receive::new(1, MINUTE).wait(a_while() * 4));
    still_waits(fixture, a_while() * 2, &mut waits).await;
    send(fixture.other(), &["a"]).await;
    assert_eq!(bodies(&ok(fixture.within(a_while() * 15, "a wait", waits).await)), ["a"]);
}

// Guarantee: queue 5.
/// The visibility time-out of a receiver that waited begins when it receives, and is as long as
/// requested.
pub async fn the_visibility_begins_when_the_wait_ends(fixture: &Fixture<dyn Queue>) {
    // On manual time the receiver may notice the message a poll, or many steps of the clock, later.
    let time = if fixture.is_on_manual_time() { MINUTE * 2 } else { a_while() };
    let mut waits = begin_wait(fixture, fixture.port(), time * 4).await;
    still_waits(fixture, time * 2, &mut waits).await;
    send(fixture.other(), &["a"]).await;
    woken(fixture, waits, "a message that was sent").await;
    fixture.pass(time * 5 / 2).await;
    assert_eq!(take(fixture.other(), 1, MINUTE).await, [], "it is hidden still");
    fixture.pass(time * 2).await;
    assert_eq!(one(fixture.other(), MINUTE).await.deliveries, 2);
}

// Guarantee: queue 6.
/// A receive that is dropped while it waits loses no message: one that it took, or was about to
/// take, is visible after its visibility time-out, and it takes none later.
pub async fn a_dropped_receive_loses_nothing(fixture: &Fixture<dyn Queue>) {
    let waits = begin_wait(fixture, fixture.port(), a_while()).await;
    send(fixture.other(), &["a"]).await;
    // The backend may hand the message to the receiver, which is gone before it sees it.
    fixture.pass(a_while() / 10).await;
    drop(waits);
    fixture.pass(a_while() * 2).await;
    let first = take(fixture.port(), 5, MINUTE).await;
    assert_eq!(bodies(&first), ["a"]);
    ok(fixture.port().complete(&first[0].receipt).await);
    for _ in 0..5 {
        drop(begin_wait(fixture, fixture.port(), a_while()).await);
    }
    send(fixture.other(), &["b"]).await;
    fixture.pass(a_while() * 2).await;
    assert_eq!(bodies(&take(fixture.port(), 5, MINUTE).await), ["b"], "the receives ended long ago");
}

// Guarantee: queue 6.
/// A receive that is dropped at any point, while messages are visible, loses none.
pub async fn a_receive_that_is_dropped_midway_loses_nothing(fixture: &Fixture<dyn Queue>) {
    let messages: Vec<_> = (10..18).map(|i| format!("{i}")).collect();
    send_many(fixture.port(), messages.iter().map(|body| Message::new(body.clone())).collect()).await;
    for (polls, wait) in (0..8).zip([Duration::ZERO, MINUTE].into_iter().cycle()) {
        poll_times(polls, fixture.port().receive(Receive::new(1, a_while()).wait(wait))).await;
    }
    fixture.pass(a_while() * 2).await;
    assert_eq!(sorted(&take(fixture.other(), 10, MINUTE).await), messages);
}
