//! What a gate seals, and a host opens once.
use std::{cell::Cell, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use steadfast::{
    codec::Codec,
    gatekeeper::{
        HandOver, HandOverConfig, HandOverError, OpenError, TrustedHost, TrustedHostConfig, TrustedHostEvent as Event,
    },
    port::{Capability, PortErrorKind},
    queue::{Delivery, InMemoryQueue, Message, Queue, QueueExt, SendOnly},
    store::{InMemoryStore, Store},
    testing::{ManualClock, PortAnswer, ScriptedPort, crash_at_every_write, drop_at_every_await},
    time::{Clock, Timestamp},
    token::{Key, KeyRing, TokenReason},
};

const S: fn(u64) -> Duration = Duration::from_secs;

thread_local! {
    /// Contents that this thread has decoded.
    static DECODED: Cell<u32> = const { Cell::new(0) };
}

fn codec() -> Codec<String> {
    Codec::new(
        |text: &String| Ok::<_, std::fmt::Error>(text.clone().into_bytes()),
        |bytes| {
            DECODED.set(DECODED.get() + 1);
            let text = String::from_utf8(bytes.to_vec())?;
            assert!(!text.contains("altered"), "content behind a bad seal was decoded");
            Ok::<_, std::string::FromUtf8Error>(text)
        },
    )
}

struct World {
    time: ManualClock,
    clock: Clock,
    key: Key,
    ring: KeyRing,
    keys: KeyRing,
    gate: HandOver<String>,
    store: Arc<InMemoryStore>,
    queue: Arc<InMemoryQueue>,
}

impl World {
    fn new() -> Self {
        let (clock, time) = Clock::manual();
        time.set_wall(Timestamp::from_millis(1_800_000_000_000));
        let key = Key::generate("one").unwrap();
        let ring = KeyRing::new([key.clone()]).unwrap();
        let keys = KeyRing::new([key.to_public().unwrap()]).unwrap();
        let gate = HandOver::builder("orders", ring.clone(), codec(), HandOverConfig::default());
        let gate = gate.clock(&clock).build().unwrap();
        let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
        let queue = Arc::new(InMemoryQueue::builder("orders").clock(&clock).build());
        Self { time, clock, key, ring, keys, gate, store, queue }
    }

    fn host_on(&self, name: &str, store: Arc<dyn Store>) -> TrustedHost<String> {
        let builder = TrustedHost::builder(name, self.keys.clone(), store, codec(), TrustedHostConfig::default());
        builder.clock(&self.clock).build().unwrap()
    }

    fn host(&self) -> TrustedHost<String> {
        self.host_on("orders", self.store.clone())
    }

    fn open(&self, sealed: &[u8]) -> Result<String, OpenError> {
        self.time.block_on(self.host().open(sealed))
    }

    fn receive(&self) -> Delivery {
        self.time.block_on(self.queue.receive_one(S(30))).unwrap().expect("a message")
    }
}

fn reason(opened: Result<String, OpenError>) -> Option<TokenReason> {
    match opened {
        Err(OpenError::Refused(refused)) => Some(refused.reason()),
        _ => None,
    }
}

// Guarantee: gatekeeper 1, 2.
#[test]
fn of_a_call_the_host_refuses_a_seal_that_is_altered_expired_used_or_for_another_host() {
    let world = World::new();
    let seal = |text: &str| world.gate.seal(&text.to_owned()).unwrap();
    let sealed = seal("an order");
    let end = sealed.iter().position(|byte| *byte == b'\n').unwrap();
    let altered = [&sealed[..=end], b"altered"].concat();
    assert_eq!(reason(world.open(&altered)), Some(TokenReason::Signature));
    let appended = [&sealed[..], b", altered"].concat();
    assert_eq!(reason(world.open(&appended)), Some(TokenReason::Signature));
    let swapped = [&seal("another")[..=end], &sealed[end + 1..]].concat();
    assert!(reason(world.open(&swapped)).is_some());
    let other = world.host_on("payments", world.store.clone());
    assert_eq!(reason(world.time.block_on(other.open(&sealed))), Some(TokenReason::Audience));
    for bytes in [&b""[..], b"\n", b"altered", &sealed[end..], &[b'a'; 10_000], &[0xff; 20]] {
        assert!(reason(world.open(bytes)).is_some());
    }
    // A token of the same key for another purpose.
    let token = world.ring.sign("other+jwt", "orders", world.clock.wall() + S(9), &()).unwrap();
    assert_eq!(reason(world.open(format!("{token}\nan order").as_bytes())), Some(TokenReason::Malformed));
    let foreign = KeyRing::new([Key::generate("one").unwrap()]).unwrap();
    let forger = HandOver::builder("orders", foreign, codec(), HandOverConfig::default()).clock(&world.clock);
    let forged = forger.build().unwrap().seal(&"an order".to_owned()).unwrap();
    assert_eq!(reason(world.open(&forged)), Some(TokenReason::Signature));

    let host = world.host();
    let mut events = host.events();
    assert_eq!(DECODED.get(), 0, "no content of a refused seal was decoded");
    assert_eq!(world.time.block_on(host.open(&sealed)).unwrap(), "an order");
    assert!(matches!(world.time.block_on(host.open(&sealed)), Err(OpenError::Used)));
    assert!(matches!(world.open(&sealed), Err(OpenError::Used)), "nor by another host");
    assert_eq!(events.try_recv().unwrap().unwrap().what, Event::Replayed);
    let late = seal("an order");
    world.time.advance(S(60));
    assert_eq!(reason(world.open(&late)), Some(TokenReason::Expired));
    // Used seals are forgotten only when no host accepts them any more.
    assert_eq!(reason(world.open(&sealed)), Some(TokenReason::Expired));
    assert_eq!(DECODED.get(), 1);
}

/// Regression: the end of a seal, and the time for which its use is remembered, were two claims of the gate, and neither had
/// a limit.
// Guarantee: gatekeeper 1, 2.
#[test]
fn a_seal_of_the_right_key_with_an_unusual_end_or_id_is_refused() {
    let world = World::new();
    // The digest of "an order".
    let sha256 = "zW9r65GawSgATaEGf-sQBwBtDFxEG9nJBh4CbfgZ80g";
    let sign = |life: Duration, claims: &Value| {
        let token = world.ring.sign("handover-call+jwt", "orders", world.clock.wall() + life, claims).unwrap();
        format!("{token}\nan order")
    };
    let id = "AAAAAAAAAAAAAAAAAAAAAA";
    let plain = json!({ "id": id, "sha256": sha256 });
    // A stock of seals for later, by a gate that lost its key.
    for life in [S(3700), S(86_400), S(1 << 40)] {
        let refused = world.open(sign(life, &plain).as_bytes());
        assert_eq!(reason(refused), Some(TokenReason::NotYetValid), "{life:?}");
    }
    for claims in [
        json!({ "id": "", "sha256": sha256 }),
        json!({ "id": "A", "sha256": sha256 }),
        json!({ "id": "A".repeat(1100), "sha256": sha256 }),
        json!({ "id": "AAAAAAAAAAAAAAAAAAAAA/", "sha256": sha256 }),
        json!({ "id": format!("{id}A"), "sha256": sha256 }),
        json!({ "id": 7, "sha256": sha256 }),
        json!({ "id": id, "sha256": sha256, "until": 0 }),
        json!({ "sha256": sha256 }),
        json!({ "id": id }),
        json!([id]),
    ] {
        assert_eq!(reason(world.open(sign(S(30), &claims).as_bytes())), Some(TokenReason::Malformed), "{claims}");
    }
    assert_eq!(
        reason(world.open(sign(S(30), &json!({ "id": id, "sha256": "" })).as_bytes())),
        Some(TokenReason::Signature)
    );
    assert_eq!(DECODED.get(), 0);
    // Its use is remembered for as long as it is accepted, whatever else the gate says.
    let sealed = sign(S(3600), &plain);
    assert_eq!(world.open(sealed.as_bytes()).unwrap(), "an order");
    for _ in 0..36 {
        world.time.advance(S(100));
        assert!(matches!(world.open(sealed.as_bytes()), Err(OpenError::Used)));
    }
    let short = TrustedHostConfig::default().max_lifetime(S(10));
    let host = TrustedHost::builder("orders", world.keys.clone(), world.store.clone(), codec(), short);
    let host = host.clock(&world.clock).build().unwrap();
    let of_gate = world.gate.seal(&"an order".to_owned()).unwrap();
    assert!(world.time.block_on(host.open(&of_gate)).is_ok(), "10 s, and 30 s between two clocks");
    let later = sign(S(42), &json!({ "id": "AAAAAAAAAAAAAAAAAAAAAQ", "sha256": sha256 }));
    assert_eq!(reason(world.time.block_on(host.open(later.as_bytes()))), Some(TokenReason::NotYetValid));
}

// Guarantee: gatekeeper 3.
#[test]
fn a_redelivered_message_is_opened_again_and_its_copy_in_another_message_is_not() {
    let world = World::new();
    let gate = SendOnly::new(world.queue.clone());
    world.time.block_on(world.gate.send(&gate, &"an order".to_owned())).unwrap();
    let (first, host) = (world.receive(), world.host());
    assert_eq!(world.time.block_on(host.open_message(&first)).unwrap(), "an order");
    world.time.advance(S(31));
    let second = world.receive();
    assert!(second.deliveries == 2 && second.id == first.id);
    assert_eq!(world.time.block_on(world.host().open_message(&second)).unwrap(), "an order");
    // The queue was read by somebody who sends the body again, by queue and by call.
    world.time.block_on(world.queue.send_one(Message::new(first.body.clone()))).unwrap();
    let copy = world.receive();
    assert!(matches!(world.time.block_on(host.open_message(&copy)), Err(OpenError::Used)));
    assert_eq!(reason(world.open(&first.body)), Some(TokenReason::Malformed), "a seal of a message is none for a call");
    let call = world.gate.seal(&"an order".to_owned()).unwrap();
    world.time.block_on(world.queue.send_one(Message::new(call))).unwrap();
    let held = world.receive();
    assert_eq!(reason(world.time.block_on(host.open_message(&held))), Some(TokenReason::Malformed), "nor the reverse");
    world.time.block_on(world.queue.send_one(Message::new(Bytes::from_static(b"altered")))).unwrap();
    assert!(reason(world.time.block_on(host.open_message(&world.receive()))).is_some());
}

// Guarantee: gatekeeper 2.
#[test]
fn of_many_hosts_at_once_one_accepts_a_seal() {
    let world = World::new();
    let sealed = world.gate.seal(&"an order".to_owned()).unwrap();
    let hosts: Vec<_> = (0..100).map(|_| world.host()).collect();
    let all = world.time.block_on(futures::future::join_all(hosts.iter().map(|host| host.open(&sealed))));
    assert_eq!(all.iter().filter(|opened| opened.is_ok()).count(), 1);
}

// Guarantee: gatekeeper 5.
#[test]
fn without_its_store_a_host_opens_nothing_and_by_queue_it_goes_on_later() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let host = world.host_on("orders", port.store(world.store.clone()));
    let gate = SendOnly::new(world.queue.clone());
    world.time.block_on(world.gate.send(&gate, &"an order".to_owned())).unwrap();
    let delivery = world.receive();
    for answer in [PortAnswer::fail(PortErrorKind::Unavailable), PortAnswer::hang()] {
        port.by(move |_| answer);
        let sealed = world.gate.seal(&"an order".to_owned()).unwrap();
        let refused = world.time.block_on(host.open(&sealed)).unwrap_err();
        assert_eq!(refused.retry_after(), Some(S(1)), "{refused}");
        assert!(matches!(world.time.block_on(host.open_message(&delivery)), Err(OpenError::Unavailable { .. })));
    }
    port.by(|_| PortAnswer::pass());
    assert_eq!(world.time.block_on(host.open_message(&delivery)).unwrap(), "an order");
}

// Guarantee: gatekeeper 4.
#[test]
fn a_rotation_of_keys_loses_no_message() {
    let world = World::new();
    let gate = SendOnly::new(world.queue.clone());
    let send = |text: &str| world.time.block_on(world.gate.send(&gate, &text.to_owned())).unwrap();
    send("before");
    let next = Key::generate("two").unwrap();
    world.keys.replace([next.to_public().unwrap(), world.key.to_public().unwrap()]).unwrap();
    send("while the host knows both");
    world.ring.replace([next.clone()]).unwrap();
    send("after");
    // In the other order the seals of the new key are refused.
    let hasty = KeyRing::new([Key::generate("three").unwrap()]).unwrap();
    let hasty =
        HandOver::builder("orders", hasty, codec(), HandOverConfig::default()).clock(&world.clock).build().unwrap();
    assert_eq!(reason(world.open(&hasty.seal(&"too early".to_owned()).unwrap())), Some(TokenReason::Key));
    for text in ["before", "while the host knows both", "after"] {
        let delivery = world.receive();
        assert_eq!(world.time.block_on(world.host().open_message(&delivery)).unwrap(), text);
    }
    world.keys.replace([next.to_public().unwrap()]).unwrap();
    let old = KeyRing::new([world.key.clone()]).unwrap();
    let old = HandOver::builder("orders", old, codec(), HandOverConfig::default()).clock(&world.clock).build().unwrap();
    assert_eq!(reason(world.open(&old.seal(&"late".to_owned()).unwrap())), Some(TokenReason::Key));
}

// Guarantee: gatekeeper 4.
#[test]
fn a_host_with_a_key_that_signs_and_a_gate_without_one_are_refused() {
    let world = World::new();
    let host =
        |keys| TrustedHost::new("orders", keys, world.store.clone(), codec(), TrustedHostConfig::default()).map(drop);
    let gate = |ring| HandOver::new("orders", ring, codec(), HandOverConfig::default()).map(drop);
    assert!(host(world.ring.clone()).unwrap_err().to_string().contains("public keys"));
    let secret = || KeyRing::new([Key::secret("one", &[7; 32]).unwrap()]).unwrap();
    assert!(host(secret()).is_err() && gate(secret()).is_err(), "a secret would sign in both places");
    // Nor do they come by a replacement.
    let sealed = world.gate.seal(&"an order".to_owned()).unwrap();
    let used = world.host();
    world.keys.replace([world.key.clone()]).unwrap();
    assert_eq!(reason(world.time.block_on(used.open(&sealed))), Some(TokenReason::Key));
    world.keys.replace([world.key.to_public().unwrap()]).unwrap();
    assert!(gate(world.keys.clone()).unwrap_err().to_string().contains("private key"));
    let long = "h".repeat(129);
    for name in ["", &long] {
        assert!(HandOver::new(name, world.ring.clone(), codec(), HandOverConfig::default()).is_err());
        let host =
            TrustedHost::new(name, world.keys.clone(), world.store.clone(), codec(), TrustedHostConfig::default());
        assert!(host.is_err());
    }
    assert!(Key::generate("k".repeat(129)).is_err(), "a seal with this id would be longer than a host reads");
    let longest = KeyRing::new([Key::generate("\u{1}".repeat(128)).unwrap()]).unwrap();
    let public = KeyRing::new([longest.keys()[0].to_public().unwrap()]).unwrap();
    let name = "\u{1}".repeat(128);
    let gate = HandOver::new(name.clone(), longest, codec(), HandOverConfig::default()).unwrap();
    let host = TrustedHost::new(name, public, world.store.clone(), codec(), TrustedHostConfig::default()).unwrap();
    let sealed = gate.seal(&"an order".to_owned()).unwrap();
    assert_eq!(world.time.block_on(host.open(&sealed)).unwrap(), "an order", "of the longest names");
    let without = ScriptedPort::changing(&world.clock, |can| can.without(Capability::TimeToLive));
    let short = without.store(world.store.clone());
    let refused = TrustedHost::new("orders", world.keys.clone(), short, codec(), TrustedHostConfig::default());
    assert!(refused.unwrap_err().to_string().contains("time"), "no time to live");
}

// Guarantee: gatekeeper 3.
#[test]
fn an_opening_that_is_dropped_at_any_await_loses_no_message() {
    let world = World::new();
    let gate = SendOnly::new(world.queue.clone());
    let port = ScriptedPort::new(&world.clock);
    port.by(|_| PortAnswer::pass().request_takes(S(1)).answer_takes(S(1)));
    let host = world.host_on("orders", port.store(world.store.clone()));
    world.time.block_on(world.gate.send(&gate, &"an order".to_owned())).unwrap();
    let delivery = world.receive();
    let polls = drop_at_every_await(&world.time, || host.open_message(&delivery), |_| {});
    assert!(polls >= 2);
    assert_eq!(world.time.block_on(host.open_message(&delivery)).unwrap(), "an order");
}

// Guarantee: gatekeeper 3.
#[test]
fn a_host_that_crashes_at_any_request_loses_no_message_and_opens_none_twice_for_others() {
    let requests = crash_at_every_write(|process| {
        let world = World::new();
        let gate = SendOnly::new(world.queue.clone());
        world.time.block_on(world.gate.send(&gate, &"an order".to_owned())).unwrap();
        let (store, queue) = (process.store(world.store.clone()), process.queue(world.queue.clone()));
        let host = world.host_on("orders", store);
        world.time.block_on(process.run(async {
            let delivery = queue.receive_one(S(30)).await.unwrap().unwrap();
            host.open_message(&delivery).await.unwrap();
            queue.complete(&delivery.receipt).await.unwrap();
        }));
        world.time.advance(S(31));
        // Another process goes on.
        while let Some(delivery) = world.time.block_on(world.queue.receive_one(S(30))).unwrap() {
            assert_eq!(world.time.block_on(world.host().open_message(&delivery)).unwrap(), "an order");
            world.time.block_on(world.queue.send_one(Message::new(delivery.body.clone()))).unwrap();
            world.time.block_on(world.queue.complete(&delivery.receipt)).unwrap();
            let copy = world.receive();
            assert!(matches!(world.time.block_on(world.host().open_message(&copy)), Err(OpenError::Used)));
            world.time.block_on(world.queue.complete(&copy.receipt)).unwrap();
        }
    });
    assert_eq!(requests, 3);
}

/// Regression: a copy in another queue was opened, whose message had the same number there.
// Guarantee: gatekeeper 3.
#[test]
fn a_copy_in_another_queue_is_not_opened_although_its_message_has_the_same_number() {
    let world = World::new();
    world.time.block_on(world.gate.send(&SendOnly::new(world.queue.clone()), &"an order".to_owned())).unwrap();
    let first = world.receive();
    let other = InMemoryQueue::builder("other").clock(&world.clock).build();
    world.time.advance(S(1));
    world.time.block_on(other.send_one(Message::new(first.body.clone()))).unwrap();
    let copy = world.time.block_on(other.receive_one(S(30))).unwrap().unwrap();
    assert_eq!(copy.id, first.id);
    let host = world.host();
    assert_eq!(world.time.block_on(host.open_message(&first)).unwrap(), "an order");
    assert!(matches!(world.time.block_on(host.open_message(&copy)), Err(OpenError::Used)));
}

// Guarantee: gatekeeper 3.
#[test]
fn of_a_message_and_its_copy_one_is_opened_whichever_comes_first() {
    let world = World::new();
    world.time.block_on(world.gate.send(&SendOnly::new(world.queue.clone()), &"an order".to_owned())).unwrap();
    let original = world.receive();
    world.time.block_on(world.queue.send_one(Message::new(original.body.clone()))).unwrap();
    let (copy, host) = (world.receive(), world.host());
    assert_eq!(world.time.block_on(host.open_message(&copy)).unwrap(), "an order");
    assert!(matches!(world.time.block_on(host.open_message(&original)), Err(OpenError::Used)));
    assert_eq!(world.time.block_on(host.open_message(&copy)).unwrap(), "an order", "again, as a redelivery");
}

// Guarantee: gatekeeper 3.
#[test]
fn a_message_whose_work_failed_is_opened_again_as_a_dead_letter() {
    let world = World::new();
    world.time.block_on(world.gate.send(&SendOnly::new(world.queue.clone()), &"an order".to_owned())).unwrap();
    let (first, host) = (world.receive(), world.host());
    world.time.block_on(host.open_message(&first)).unwrap();
    world.time.block_on(world.queue.dead_letter(&first.receipt, "the work failed")).unwrap();
    let letters = world.queue.dead_letters().unwrap();
    world.time.advance(S(60));
    let letter = world.time.block_on(letters.receive_one(S(30))).unwrap().unwrap();
    assert_eq!(world.time.block_on(host.open_message(&letter)).unwrap(), "an order");
}

// Guarantee: gatekeeper 5.
#[test]
fn after_a_lost_answer_of_the_store_the_gate_seals_anew() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let host = world.host_on("orders", port.store(world.store.clone()));
    let seal = || world.gate.seal(&"an order".to_owned()).unwrap();
    let sealed = seal();
    port.by(|_| PortAnswer::lose(PortErrorKind::Unavailable));
    let lost = world.time.block_on(host.open(&sealed)).unwrap_err();
    assert_eq!(lost.retry_after(), Some(S(1)), "{lost}");
    port.by(|_| PortAnswer::pass());
    assert!(matches!(world.time.block_on(host.open(&sealed)), Err(OpenError::Used)), "the insert had been applied");
    assert_eq!(world.time.block_on(host.open(&seal())).unwrap(), "an order");
}

#[test]
fn a_message_that_the_queue_refuses_or_whose_answer_is_lost_is_an_error_of_the_queue() {
    let world = World::new();
    let port = ScriptedPort::new(&world.clock);
    let queue = SendOnly::new(port.queue(world.queue.clone()));
    let send = || world.time.block_on(world.gate.send(&queue, &"an order".to_owned()));
    port.by(|_| PortAnswer::fail(PortErrorKind::Unavailable));
    assert!(matches!(send().unwrap_err(), HandOverError::Queue(_)));
    assert!(world.time.block_on(world.queue.receive_one(S(30))).unwrap().is_none(), "nothing was sent");
    port.by(|_| PortAnswer::lose(PortErrorKind::Unavailable));
    assert!(matches!(send().unwrap_err(), HandOverError::Queue(_)));
    port.by(|_| PortAnswer::pass());
    send().unwrap();
    // The caller repeated its value: these are two messages with a seal each.
    for _ in 0..2 {
        let delivery = world.receive();
        assert_eq!(world.time.block_on(world.host().open_message(&delivery)).unwrap(), "an order");
    }
}

#[test]
fn the_text_of_an_error_has_no_part_of_the_content() {
    let world = World::new();
    let codec = Codec::<u32>::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let host =
        TrustedHost::builder("orders", world.keys.clone(), world.store.clone(), codec, TrustedHostConfig::default());
    let host = host.clock(&world.clock).build().unwrap();
    let sealed = world.gate.seal(&"\"4111 1111\"".to_owned()).unwrap();
    let error = world.time.block_on(host.open(&sealed)).unwrap_err();
    assert!(matches!(error, OpenError::Content(_)) && !error.to_string().contains("4111"), "{error}");
}

#[test]
fn a_used_seal_is_remembered_until_no_host_accepts_it() {
    let world = World::new();
    let sealed = world.gate.seal(&"an order".to_owned()).unwrap();
    world.open(&sealed).unwrap();
    world.time.advance(S(45));
    assert!(matches!(world.open(&sealed), Err(OpenError::Used)), "behind its end, within the leeway");
}
