//! Pause of queues and cancellation of messages, from any process.
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    notify::InMemoryNotifier,
    port::PortErrorKind,
    queue::{AnnouncingQueue, InMemoryQueue, Message, MessageId, Queue, QueueExt},
    queue_listener::{
        Disposition, Level, QueueCall, QueueControl, QueueListener, QueueListenerConfig, QueueListenerEvent as Event,
        Work,
    },
    store::{InMemoryStore, Store},
    testing::{PortAnswer, ScriptedPort, drop_at_every_await},
    time::{Clock, ManualClock},
};

use crate::queue_listener::world::{MS, S, answer, never_wakes, text, told};

const AWAY: PortAnswer = PortAnswer::fail(PortErrorKind::Unavailable);

pub(crate) struct Place {
    pub(crate) clock: Clock,
    pub(crate) time: ManualClock,
    pub(crate) queue: Arc<InMemoryQueue>,
    records: Arc<dyn Store>,
    script: ScriptedPort,
    pub(crate) notifier: Arc<InMemoryNotifier>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::with_slow_store(Duration::ZERO)
    }

    fn with_slow_store(takes: Duration) -> Self {
        let (clock, time) = Clock::manual();
        let script = ScriptedPort::new(&clock);
        script.by(move |call| match call.method {
            "put" => PortAnswer::pass().request_takes(takes).answer_takes(takes),
            "delete" | "scan" => PortAnswer::pass().request_takes(takes),
            _ => PortAnswer::pass(),
        });
        let records = script.store(Arc::new(InMemoryStore::builder().clock(&clock).build()));
        let queue = Arc::new(InMemoryQueue::builder("jobs").clock(&clock).build());
        Self { clock, time, queue, records, script, notifier: Arc::new(InMemoryNotifier::new()) }
    }

    fn scans(&self) -> u64 {
        self.script.calls("scan").len() as u64
    }

    /// A control whose notices are lost.
    pub(crate) fn silent(&self) -> QueueControl {
        QueueControl::builder(self.records.clone()).clock(&self.clock).build().unwrap()
    }

    pub(crate) fn control(&self) -> QueueControl {
        let builder = QueueControl::builder(self.records.clone()).notifier(self.notifier.clone(), "control");
        builder.clock(&self.clock).build().unwrap()
    }

    pub(crate) fn listener(&self, control: &QueueControl, config: QueueListenerConfig) -> QueueListener {
        let builder = QueueListener::builder(self.queue.clone(), config).control(control);
        builder.clock(&self.clock).build().unwrap()
    }

    fn send(&self, body: &'static str) -> MessageId {
        self.time.block_on(self.queue.send_one(Message::new(body))).unwrap()
    }

    /// Reasons of the dead letters, by body.
    fn dead(&self) -> BTreeMap<String, String> {
        let dead = self.time.block_on(self.queue.dead_letters().unwrap().peek(1000)).unwrap();
        dead.iter().map(|dead| (text(&dead.body), dead.reason.clone().unwrap())).collect()
    }

    fn total(&self) -> u64 {
        self.time.block_on(self.queue.depth()).unwrap().total()
    }

    /// Runs the listener beside the operator, and stops it when the operator is done.
    pub(crate) fn beside<T, H: Future<Output = Disposition>>(
        &self,
        listener: &QueueListener,
        handler: impl Fn(Work) -> H,
        operator: impl Future<Output = T>,
    ) -> T {
        self.time.block_on(async {
            let (ended, end) = tokio::sync::oneshot::channel::<()>();
            let operator = async {
                let output = operator.await;
                drop(ended);
                output
            };
            let (ran, output) = tokio::join!(listener.run(async { drop(end.await) }, handler), operator);
            ran.unwrap();
            output
        })
    }
}

async fn completes(_: Work) -> Disposition {
    Disposition::Complete
}

async fn is_never_called(work: Work) -> Disposition {
    panic!("no handler may begin, but {work:?}")
}

// Guarantee: queue_listener 19.
#[test]
fn a_pause_reaches_running_listeners_with_its_notice_and_survives_their_restart() {
    let place = Place::new();
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default());
    let mut events = listener.events();
    let queue = &place.queue;
    place.beside(&listener, completes, async {
        place.clock.sleep(S(5)).await;
        control.pause(queue).await.unwrap();
        place.clock.sleep(MS(1)).await;
        assert_eq!((listener.state().paused, listener.state().paused_queues), (true, 1));
        let polls = listener.state().polls;
        queue.send_one(Message::new("late")).await.unwrap();
        place.clock.sleep(S(3600)).await;
        assert_eq!((listener.state().polls, listener.state().handled), (polls, 0), "it polls no more");
    });
    // Another listener, as after a restart.
    let later = place.listener(&place.control(), QueueListenerConfig::default());
    place.beside(&later, is_never_called, place.clock.sleep(S(3600)));
    assert_eq!((later.state().polls, later.state().paused), (0, true));
    assert!(place.time.block_on(control.is_paused(queue)).unwrap());
    place.beside(&listener, completes, async {
        place.clock.sleep(S(1)).await;
        control.resume(queue).await.unwrap();
        place.clock.sleep(MS(100)).await;
        assert_eq!((listener.state().paused, listener.state().handled), (false, 1), "at once");
    });
    let identity = queue.identity();
    let told = told(&mut events);
    let expected = [Event::QueuePaused { queue: identity.clone() }, Event::QueueResumed { queue: identity }];
    assert!(expected.iter().all(|event| told.iter().filter(|one| *one == event).count() == 1), "{told:?}");
}

// Guarantee: queue_listener 19.
#[test]
fn a_lost_notice_delays_a_pause_and_a_resume_by_the_interval() {
    let place = Place::new();
    let silent = place.silent();
    let config = QueueListenerConfig::default();
    let listener = place.listener(&place.control(), config);
    let queue = &place.queue;
    let sent = Cell::new(0);
    let sends = async {
        loop {
            queue.send_one(Message::new("one of many")).await.unwrap();
            sent.set(sent.get() + 1);
            place.clock.sleep(MS(200)).await;
        }
    };
    place.beside(&listener, completes, async {
        let operator = async {
            place.clock.sleep(S(3)).await;
            silent.pause(queue).await.unwrap();
            place.clock.sleep(S(11)).await;
            let handled = listener.state().handled;
            assert!(listener.state().paused);
            place.clock.sleep(S(60)).await;
            assert_eq!(listener.state().handled, handled);
            silent.resume(queue).await.unwrap();
            place.clock.sleep(S(11)).await;
            assert!(!listener.state().paused && listener.state().handled + 5 > sent.get(), "{:?}", listener.state());
        };
        tokio::select! { () = operator => {}, () = sends => {} }
    });
}

// Guarantee: queue_listener 19.
#[test]
fn a_pause_releases_waiting_messages_and_lets_running_handlers_finish() {
    let place = Place::new();
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default().tasks(1, 2).batch(8));
    ["a", "b", "c", "d", "e", "f"].into_iter().for_each(|body| drop(place.send(body)));
    let ended = Cell::new(0);
    let handler = async |_: Work| {
        place.clock.sleep(S(60)).await;
        ended.set(ended.get() + 1);
        Disposition::Complete
    };
    place.beside(&listener, handler, async {
        place.clock.sleep(S(1)).await;
        let begun = listener.state().in_flight;
        control.pause(&place.queue).await.unwrap();
        place.clock.sleep(S(1)).await;
        let depth = place.queue.depth().await.unwrap();
        assert_eq!((depth.in_flight, listener.state().buffered), (begun, 0), "{depth:?}");
        place.clock.sleep(S(100)).await;
        assert_eq!((ended.get(), listener.state().in_flight), (begun, 0));
        assert_eq!(place.queue.depth().await.unwrap().visible, 6 - begun);
    });
}

// Guarantee: queue_listener 19.
#[test]
fn of_two_queues_the_paused_one_waits_and_the_other_is_handled() {
    for wakes in [false, true] {
        let place = Place::new();
        let control = place.control();
        let other = Arc::new(InMemoryQueue::builder("other").clock(&place.clock).build());
        let queue =
            |queue: &Arc<InMemoryQueue>| -> Arc<dyn Queue> { if wakes { queue.clone() } else { never_wakes(queue) } };
        let (first, second) = (queue(&place.queue), queue(&other));
        let builder = QueueListener::builder(first, QueueListenerConfig::default()).source(second, Level::default());
        let listener = builder.control(&control).clock(&place.clock).build().unwrap();
        let handled = RefCell::new(Vec::new());
        let handler = async |work: Work| {
            handled.borrow_mut().push((text(&work.body), work.deliveries));
            Disposition::Complete
        };
        place.beside(&listener, handler, async {
            place.clock.sleep(S(30)).await;
            control.pause(&place.queue).await.unwrap();
            place.clock.sleep(S(30)).await;
            place.queue.send_one(Message::new("waits")).await.unwrap();
            other.send_one(Message::new("passes")).await.unwrap();
            place.clock.sleep(S(120)).await;
            assert_eq!(*handled.borrow(), [("passes".to_owned(), 1)]);
            assert_eq!((listener.state().paused, listener.state().paused_queues), (false, 1));
            control.resume(&place.queue).await.unwrap();
            place.clock.sleep(S(61)).await;
            // Also not received and released.
            assert_eq!(*handled.borrow(), [("passes".to_owned(), 1), ("waits".to_owned(), 1)]);
        });
    }
}

// Guarantee: queue_listener 19.
#[test]
fn a_run_takes_nothing_before_its_first_read_and_continues_without_the_store_later() {
    let place = Place::new();
    let listener = place.listener(&place.control(), QueueListenerConfig::default());
    let mut events = listener.events();
    place.send("first");
    place.script.always("", AWAY);
    place.beside(&listener, completes, async {
        place.clock.sleep(S(120)).await;
        assert_eq!((listener.state().polls, listener.state().paused), (0, false));
        place.script.always("", PortAnswer::pass());
        place.clock.sleep(S(11)).await;
        assert_eq!(listener.state().handled, 1);
        place.script.always("", AWAY);
        place.clock.sleep(S(300)).await;
        place.queue.send_one(Message::new("second")).await.unwrap();
        place.clock.sleep(S(61)).await;
        assert_eq!(listener.state().handled, 2, "the records read last apply");
    });
    let failed = Event::CallFailed { call: QueueCall::Control, kind: Some(PortErrorKind::Unavailable) };
    assert!(told(&mut events).contains(&failed));
}

// Guarantee: queue_listener 20.
#[test]
fn a_cancelled_message_that_waits_becomes_a_dead_letter_without_its_handler() {
    let place = Place::new();
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default());
    let mut events = listener.events();
    let (id, handled) = (place.send("cancelled"), RefCell::new(Vec::new()));
    place.send("other");
    place.time.block_on(control.cancel(&place.queue, &id)).unwrap();
    let pending = |control: &QueueControl| place.time.block_on(control.list_cancellations(&place.queue)).unwrap();
    assert_eq!(pending(&control), [id.to_string()]);
    let handler = async |work: Work| {
        handled.borrow_mut().push(text(&work.body));
        Disposition::Complete
    };
    place.beside(&listener, handler, place.clock.sleep(S(30)));
    assert_eq!(*handled.borrow(), ["other"]);
    assert!(place.dead()["cancelled"].starts_with("cancelled (attempt 1, delivery 1,"), "{:?}", place.dead());
    assert_eq!((listener.state().cancelled, listener.state().dead_lettered), (1, 0));
    assert!(told(&mut events).contains(&Event::Cancelled { id }));
    assert_eq!(pending(&control), [""; 0], "its record is gone");
    // The queue of dead letters has none of its own.
    let dead = place.queue.dead_letters().unwrap();
    let letter = place.time.block_on(dead.peek(1)).unwrap().remove(0);
    place.time.block_on(control.cancel(&dead, &letter.id)).unwrap();
    let builder = QueueListener::builder(dead.clone(), QueueListenerConfig::default()).control(&control);
    let listener = builder.clock(&place.clock).build().unwrap();
    place.beside(&listener, is_never_called, place.clock.sleep(S(30)));
    assert_eq!((place.dead().len(), listener.state().cancelled), (0, 1), "it is removed");
}

/// Each handler answers in its own way after the signal; those that obey do so at once.
// Guarantee: queue_listener 20.
#[test]
fn a_handler_of_a_cancelled_message_is_asked_to_stop_and_its_message_is_not_tried_again() {
    for notices in [true, false] {
        let place = Place::new();
        let operator = if notices { place.control() } else { place.silent() };
        // With each task at work, no poll reads the records.
        let config = QueueListenerConfig::default().tasks(1, 7).visibility(S(30));
        let listener = place.listener(&place.control(), config);
        let bodies = ["fails", "panics", "snoozes", "releases", "refuses", "completes", "ignores"];
        let ids: Vec<_> = bodies.into_iter().map(|body| place.send(body)).collect();
        let (asked, runs) = (RefCell::new(BTreeMap::new()), Cell::new(0));
        let handler = async |work: Work| {
            runs.set(runs.get() + 1);
            if &work.body[..] == b"ignores" {
                place.clock.sleep(S(300)).await;
                return Disposition::Complete;
            }
            work.cancelled().await;
            asked.borrow_mut().insert(text(&work.body), place.clock.now());
            match &work.body[..] {
                b"fails" => Disposition::retry("half done"),
                b"panics" => panic!("half done"),
                b"snoozes" => Disposition::snooze(S(10)),
                b"releases" => Disposition::Release,
                b"refuses" => Disposition::refused(None, "half done"),
                _ => Disposition::Complete,
            }
        };
        place.beside(&listener, handler, async {
            place.clock.sleep(S(15)).await;
            for id in &ids {
                operator.cancel(&place.queue, id).await.unwrap();
            }
            let at = place.clock.now();
            place.clock.sleep(S(400)).await;
            // Without a notice with the next renewal, at a third of the lease.
            let bound = if notices { MS(200) } else { S(11) };
            assert!(asked.borrow().values().all(|asked| *asked - at <= bound), "{at:?} {asked:?}");
        });
        assert_eq!((runs.get(), asked.borrow().len(), place.total()), (7, 6, 0));
        let dead: Vec<_> = place.dead().into_keys().collect();
        assert_eq!(dead, ["fails", "panics", "refuses", "releases", "snoozes"]);
        assert!(place.dead().values().all(|reason| reason.starts_with("cancelled")), "{:?}", place.dead());
        let state = listener.state();
        assert_eq!((state.cancelled, state.handled), (5, 2));
        assert_eq!((state.failed, state.snoozed, state.refused, state.released), (0, 0, 0, 0), "{state:?}");
        let left = place.time.block_on(operator.list_cancellations(&place.queue)).unwrap();
        assert_eq!(left, [""; 0], "also those that completed");
    }
}

// Guarantee: queue_listener 20.
#[test]
fn processes_on_one_file_pause_and_cancel_for_each_other() {
    let (clock, time) = Clock::manual();
    let folder = tempfile::tempdir().unwrap();
    let process = || {
        let sqlite = Sqlite::open_with_clock(
            SqliteConfig::at(folder.path().join("jobs.db")).durability(Durability::Relaxed),
            &clock,
        )
        .unwrap();
        let queue: Arc<dyn Queue> = Arc::new(sqlite.queue("jobs").unwrap());
        let builder = QueueControl::builder(Arc::new(sqlite.store()));
        let control = builder.notifier(Arc::new(sqlite.notifier()), "control").clock(&clock).build().unwrap();
        (queue, control)
    };
    let ((queue, control), (far, far_control)) = (process(), process());
    let builder = QueueListener::builder(queue.clone(), QueueListenerConfig::default()).control(&control);
    let listener = builder.clock(&clock).build().unwrap();
    let handler = async |work: Work| {
        work.cancelled().await;
        Disposition::retry("stopped half way")
    };
    let operator = async {
        let id = far.send_one(Message::new("long")).await.unwrap();
        clock.sleep(S(70)).await;
        assert_eq!(listener.state().in_flight, 1);
        far_control.cancel(&far, &id).await.unwrap();
        clock.sleep(S(11)).await;
        assert_eq!((listener.state().in_flight, listener.state().cancelled), (0, 1));
        far_control.pause(&far).await.unwrap();
        clock.sleep(S(11)).await;
        assert!(listener.state().paused && control.is_paused(&queue).await.unwrap());
        far.send_one(Message::new("waits")).await.unwrap();
        clock.sleep(S(61)).await;
        assert_eq!(listener.state().in_flight, 0);
        far_control.resume(&far).await.unwrap();
        clock.sleep(S(11)).await;
        assert_eq!(listener.state().in_flight, 1, "it had waited");
    };
    time.block_on(async {
        tokio::select! { ran = listener.run(pending(), handler) => ran.unwrap(), () = operator => {} }
    });
    let letters = answer(far.dead_letters().unwrap().peek(10)).unwrap();
    assert!(letters.len() == 1 && letters[0].reason.as_ref().unwrap().starts_with("cancelled"), "{letters:?}");
}

// Guarantee: queue_listener 20.
#[test]
fn of_a_batch_only_the_cancelled_message_ends_as_cancelled() {
    let place = Place::new();
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default());
    let ids: Vec<_> = ["waits", "runs", "other"].into_iter().map(|body| place.send(body)).collect();
    place.time.block_on(control.cancel(&place.queue, &ids[0])).unwrap();
    let batches = RefCell::new(Vec::new());
    let run = listener.run_batches(place.clock.sleep(S(60)), async |works: Vec<Work>| {
        batches.borrow_mut().push(works.iter().map(|work| text(&work.body)).collect::<Vec<_>>());
        place.clock.sleep(S(5)).await;
        works
            .iter()
            .map(|work| if work.deliveries == 1 { Disposition::retry("no") } else { Disposition::Complete })
            .collect()
    });
    let cancels = async {
        place.clock.sleep(S(2)).await;
        control.cancel(&place.queue, &ids[1]).await.unwrap();
    };
    place.time.block_on(async { tokio::join!(run, cancels).0 }).unwrap();
    assert_eq!(batches.borrow()[..2], [vec!["runs", "other"], vec!["other"]]);
    assert_eq!(place.dead().into_keys().collect::<Vec<_>>(), ["runs", "waits"]);
    assert_eq!((listener.state().cancelled, listener.state().handled, place.total()), (2, 1, 0));
}

// Guarantee: queue_listener 21.
#[test]
fn a_control_adds_no_request_to_the_queue_and_reads_at_most_once_per_interval() {
    let day = S(22 * 3600);
    let polls = |with: bool| {
        let place = Place::new();
        let builder = QueueListener::builder(place.queue.clone(), QueueListenerConfig::default()).clock(&place.clock);
        let builder = builder.entropy(&steadfast::entropy::Entropy::from_seed(1));
        let builder = if with { builder.control(&place.control()) } else { builder };
        let listener = builder.build().unwrap();
        place.beside(&listener, is_never_called, place.clock.sleep(day));
        (listener.state().requests, listener.state().control_reads, place.scans())
    };
    let ((idle, none, _), (with, reads, scans)) = (polls(false), polls(true));
    assert_eq!((with, none, reads), (idle, 0, scans));
    assert!(reads <= idle, "a read goes with a poll: {reads} for {idle}");
    // Woken by notices, an idle listener reads nothing either.
    let place = Place::new();
    let builder = QueueListener::builder(place.queue.clone(), QueueListenerConfig::default().tasks(0, 16));
    let builder = builder.notifier(place.notifier.clone(), "jobs").control(&place.control()).clock(&place.clock);
    let listener = builder.build().unwrap();
    place.beside(&listener, is_never_called, async {
        place.clock.sleep(S(3600)).await;
        // A look at the state costs a request for the depth, at most each minute.
        listener.state();
        place.clock.sleep(S(1)).await;
        let before = (listener.state().requests, place.scans());
        place.clock.sleep(day).await;
        assert_eq!((listener.state().requests, place.scans()), before);
    });
    println!("22 idle hours: {idle} polls, {reads} reads of the control, and none with notices");
    // Under load the reads follow the time, not the messages.
    let place = Place::new();
    let listener = place.listener(&place.control(), QueueListenerConfig::default());
    let sends = async {
        for _ in 0..100 {
            place.queue.send((0..100).map(|_| Message::new("one of many")).collect()).await.unwrap();
            place.clock.sleep(S(1)).await;
        }
    };
    place.beside(&listener, completes, sends);
    assert_eq!(listener.state().handled, 10_000);
    assert!((10..=11).contains(&place.scans()), "{:?}", place.scans());
}

#[test]
fn operations_of_a_control_dropped_at_any_await_can_be_repeated() {
    let place = Place::with_slow_store(MS(3));
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default());
    let run = RefCell::new(Box::pin(listener.run(pending(), async |work: Work| {
        work.cancelled().await;
        Disposition::retry("stopped")
    })));
    let beside = async |future: std::pin::Pin<Box<dyn Future<Output = ()> + '_>>| {
        let mut future = future;
        std::future::poll_fn(|cx| {
            assert!(run.borrow_mut().as_mut().poll(cx).is_pending(), "the run has no end");
            future.as_mut().poll(cx)
        })
        .await;
    };
    let cancelled = Cell::new(0);
    let polls = drop_at_every_await(
        &place.time,
        || {
            let (place, control, id) = (&place, &control, place.send("long"));
            beside(Box::pin(async move {
                control.pause(&place.queue).await.unwrap();
                control.resume(&place.queue).await.unwrap();
                place.clock.sleep(S(1)).await;
                control.cancel(&place.queue, &id).await.unwrap();
            }))
        },
        |_| {
            // Whatever was applied: the message can be cancelled and the queue resumed.
            let queue = &place.queue;
            place.time.block_on(beside(Box::pin(async {
                control.pause(queue).await.unwrap();
                for peeked in queue.peek(10).await.unwrap() {
                    control.cancel(queue, &peeked.id).await.unwrap();
                }
                control.resume(queue).await.unwrap();
                place.clock.sleep(S(70)).await;
                assert!(!control.is_paused(queue).await.unwrap());
                assert_eq!(control.list_cancellations(queue).await.unwrap(), [""; 0]);
            })));
            cancelled.set(cancelled.get() + 1);
            assert_eq!((place.total(), place.dead().len()), (0, 1));
            assert_eq!(listener.state().cancelled, cancelled.get());
        },
    );
    assert!(polls >= 5, "{polls}");
}

// Guarantee: queue_listener 16.
#[test]
fn a_run_with_a_control_dropped_at_any_await_loses_no_message() {
    let place = Place::with_slow_store(MS(3));
    let control = place.control();
    let config = QueueListenerConfig::default().max_expiries(u32::MAX).max_attempts(u32::MAX);
    let listener = place.listener(&control, config);
    let (sent, handled) = (RefCell::new(BTreeSet::new()), RefCell::new(BTreeSet::new()));
    let handler = async |work: Work| {
        place.clock.sleep(MS(20)).await;
        if &work.body[..] == b"snoozed" && work.deliveries == 1 {
            return Disposition::snooze(S(5));
        }
        handled.borrow_mut().insert(work.id.clone());
        Disposition::Complete
    };
    let is_ended = Cell::new(false);
    let run = async || {
        is_ended.set(false);
        listener.run(place.clock.sleep(S(12)), handler).await.unwrap();
        is_ended.set(true);
    };
    let dead = || place.time.block_on(place.queue.dead_letters().unwrap().peek(1000)).unwrap();
    let polls = drop_at_every_await(
        &place.time,
        || {
            for body in ["completes", "cancelled", "snoozed"] {
                let id = place.send(body);
                if body == "cancelled" {
                    place.time.block_on(control.cancel(&place.queue, &id)).unwrap();
                }
                sent.borrow_mut().insert(id);
            }
            run()
        },
        |_| {
            let waiting = place.time.block_on(place.queue.peek(1000)).unwrap();
            let mut found: BTreeSet<_> = waiting.into_iter().chain(dead()).map(|peeked| peeked.id).collect();
            found.extend(handled.borrow().iter().cloned());
            assert_eq!(found, *sent.borrow());
        },
    );
    assert!(polls >= 10 && is_ended.get(), "{polls}");
    place.time.block_on(listener.run(place.clock.sleep(S(600)), handler)).unwrap();
    let dead = dead();
    assert!(dead.iter().all(|letter| &letter.body[..] == b"cancelled"), "{dead:?}");
    assert_eq!((place.total(), dead.len() * 3), (0, sent.borrow().len()));
}

/// The messages waited for the next notice: without tasks no other poll found them.
#[test]
fn a_resumed_queue_is_polled_at_once_also_beside_another_queue() {
    let place = Place::new();
    let control = place.control();
    let other = Arc::new(InMemoryQueue::builder("other").clock(&place.clock).build());
    let builder = QueueListener::builder(place.queue.clone(), QueueListenerConfig::default().tasks(0, 4))
        .source(other, Level::default())
        .notifier(place.notifier.clone(), "jobs");
    let listener = builder.control(&control).clock(&place.clock).build().unwrap();
    let announcing = AnnouncingQueue::new(place.queue.clone(), place.notifier.clone(), "jobs");
    place.beside(&listener, completes, async {
        place.clock.sleep(S(30)).await;
        control.pause(&place.queue).await.unwrap();
        place.clock.sleep(S(1)).await;
        announcing.send_one(Message::new("sent during the pause")).await.unwrap();
        place.clock.sleep(S(3600)).await;
        assert_eq!((listener.state().handled, listener.state().tasks), (0, 0));
        control.resume(&place.queue).await.unwrap();
        place.clock.sleep(MS(100)).await;
        assert_eq!(listener.state().handled, 1);
    });
}

/// A waiting message is outside the backlog during its renewal, and was put back after the pause.
#[test]
fn a_pause_also_releases_messages_whose_leases_are_being_renewed() {
    let place = Place::new();
    let control = place.control();
    let script = ScriptedPort::new(&place.clock);
    script.always("extend", PortAnswer::pass().request_takes(S(3)));
    let queue = script.queue(place.queue.clone());
    let other = Arc::new(InMemoryQueue::builder("other").clock(&place.clock).build());
    let builder = QueueListener::builder(queue, QueueListenerConfig::default().tasks(1, 1).batch(8));
    let listener = builder.source(other, Level::default()).control(&control).clock(&place.clock).build().unwrap();
    (0..20).for_each(|_| drop(place.send("quick")));
    let begun = Cell::new(0);
    let handler = async |_: Work| {
        begun.set(begun.get() + 1);
        if begun.get() == 10 {
            place.clock.sleep(S(16)).await;
        }
        Disposition::Complete
    };
    place.beside(&listener, handler, async {
        // Renewals began after 10 s.
        place.clock.sleep(S(11)).await;
        control.pause(&place.queue).await.unwrap();
        place.clock.sleep(S(60)).await;
        assert_eq!((begun.get(), listener.state().handled, listener.state().in_flight), (10, 10, 0));
        assert_eq!(place.queue.depth().await.unwrap().visible, 10);
    });
}

/// Nothing but a notice, or another cancellation, caused a second attempt.
#[test]
fn the_record_of_an_ended_message_whose_deletion_failed_is_deleted_later() {
    let place = Place::new();
    let control = place.control();
    let listener = place.listener(&control, QueueListenerConfig::default());
    let id = place.send("cancelled");
    let handler = async |work: Work| {
        work.cancelled().await;
        place.clock.sleep(S(1)).await;
        Disposition::retry("stopped")
    };
    place.beside(&listener, handler, async {
        place.clock.sleep(S(1)).await;
        control.cancel(&place.queue, &id).await.unwrap();
        place.clock.sleep(MS(500)).await;
        place.script.always("", AWAY);
        place.clock.sleep(S(2)).await;
        assert_eq!(listener.state().cancelled, 1);
        // Before the next read, which therefore succeeds.
        place.script.always("", PortAnswer::pass());
        assert_eq!(control.list_cancellations(&place.queue).await.unwrap(), [id.to_string()]);
        place.clock.sleep(S(120)).await;
        assert_eq!(control.list_cancellations(&place.queue).await.unwrap(), Vec::<String>::new());
    });
}

/// A suspect message waits for running handlers before it begins, which may take long.
#[test]
fn a_suspect_message_that_was_cancelled_or_paused_while_it_waited_does_not_begin() {
    for cancels in [true, false] {
        let place = Place::new();
        let control = place.control();
        let other = Arc::new(InMemoryQueue::builder("other").clock(&place.clock).build());
        let builder = QueueListener::builder(place.queue.clone(), QueueListenerConfig::default());
        let builder = builder.source(other.clone(), Level::default()).control(&control);
        let listener = builder.clock(&place.clock).build().unwrap();
        let begun = Cell::new(0);
        let handler = async |work: Work| {
            if work.body == "takes an hour" {
                place.clock.sleep(S(3600)).await;
            } else {
                begun.set(begun.get() + 1);
            }
            Disposition::Complete
        };
        place.beside(&listener, handler, async {
            other.send_one(Message::new("takes an hour")).await.unwrap();
            place.clock.sleep(S(10)).await;
            // A process takes it and dies.
            let (now, queue) = (place.clock.now(), &place.queue);
            let id = queue.send_one(Message::new("suspect").delay(S(1))).await.unwrap();
            control.pause(queue).await.unwrap();
            place.clock.sleep(S(2)).await;
            queue.receive_one(S(1)).await.unwrap().expect("it is visible");
            place.clock.sleep(S(2)).await;
            control.resume(queue).await.unwrap();
            // It has waited for half of the time for which others hold it up.
            place.clock.sleep(S(5)).await;
            assert_eq!((queue.depth().await.unwrap().in_flight, begun.get()), (1, 0), "{:?}", place.clock.now() - now);
            if cancels {
                control.cancel(queue, &id).await.unwrap();
            } else {
                control.pause(queue).await.unwrap();
            }
            place.clock.sleep(S(20)).await;
            assert_eq!(begun.get(), 0, "cancelled: {cancels}");
            if !cancels {
                control.resume(queue).await.unwrap();
                place.clock.sleep(S(60)).await;
            }
            assert_eq!(begun.get(), u32::from(!cancels));
        });
        let dead: Vec<_> = place.dead().into_keys().collect();
        assert_eq!(dead, if cancels { &["suspect"][..] } else { &[] });
    }
}
