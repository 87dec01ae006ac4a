//! Pauses, resumes, cancellations and snoozes in any order, against a model.
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::pending,
    time::Duration,
};

use proptest::prelude::*;
use steadfast::{
    queue::{Message, MessageId, Queue, QueueExt},
    queue_listener::{Disposition, QueueListener, QueueListenerConfig, Work},
    time::Clock,
};

use crate::queue_listener::{
    control::Place,
    world::{MS, S, text},
};

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Sends a message that its handler ends in this way.
    Send(Way),
    Cancel(usize),
    Pause,
    Resume,
    PauseHere,
    ResumeHere,
    /// Drops one listener's run, as if its process died, and starts another.
    Restart,
    Pass(Duration),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Completes,
    SnoozesTwice,
    FailsOnce,
    FailsAlways,
    /// Ends only when it is asked to stop.
    Obeys,
    /// Works for this long, whatever it is asked.
    Ignores(Duration),
}

/// Life of a message.
#[derive(Debug, Clone, Default)]
struct Life {
    begun: u32,
    completed: bool,
    /// `true` if its cancellation was known to the listeners before a handler began.
    cancelled: bool,
    begun_after: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let way = prop_oneof![
        Just(Way::Completes),
        Just(Way::SnoozesTwice),
        Just(Way::FailsOnce),
        Just(Way::FailsAlways),
        Just(Way::Obeys),
        (1u64..40).prop_map(|s| Way::Ignores(S(s))),
    ];
    let step = prop_oneof![
        4 => way.prop_map(Step::Send),
        3 => (0usize..12).prop_map(Step::Cancel),
        1 => Just(Step::Pause),
        1 => Just(Step::Resume),
        1 => Just(Step::PauseHere),
        1 => Just(Step::ResumeHere),
        1 => Just(Step::Restart),
        3 => (0u64..45_000).prop_map(|ms| Step::Pass(MS(ms))),
    ];
    prop::collection::vec(step, 1..30)
}

/// The world as its handlers know it.
struct Model<'a> {
    clock: &'a Clock,
    listeners: &'a [QueueListener; 2],
    lives: RefCell<BTreeMap<usize, Life>>,
    ways: RefCell<Vec<(Way, MessageId)>>,
    is_paused: Cell<bool>,
    violations: RefCell<Vec<String>>,
}

impl<'a> Model<'a> {
    fn new(clock: &'a Clock, listeners: &'a [QueueListener; 2]) -> Self {
        let (lives, ways, is_paused, violations) = Default::default();
        Self { clock, listeners, lives, ways, is_paused, violations }
    }

    async fn handle(&self, listener: usize, work: Work) -> Disposition {
        let number: usize = text(&work.body).parse().unwrap();
        {
            let mut lives = self.lives.borrow_mut();
            let life = lives.entry(number).or_default();
            life.begun += 1;
            life.begun_after |= life.cancelled;
            // A panic here would be a failure of the message.
            if life.completed {
                self.violations.borrow_mut().push(format!("{number} was handled before"));
            }
        }
        let is_paused = self.is_paused.get() || self.listeners[listener].state().paused;
        if is_paused {
            self.violations.borrow_mut().push(format!("the handler of {number} began during a pause"));
        }
        let way = self.ways.borrow()[number].0;
        let disposition = match way {
            Way::SnoozesTwice if work.deliveries < 3 => Disposition::snooze(S(20)),
            Way::FailsOnce if work.attempts == 0 => Disposition::retry("no"),
            Way::FailsAlways => Disposition::retry("never"),
            Way::Obeys => {
                work.cancelled().await;
                Disposition::retry("stopped")
            }
            Way::Ignores(time) => {
                self.clock.sleep(time).await;
                Disposition::Complete
            }
            Way::Completes | Way::SnoozesTwice | Way::FailsOnce => Disposition::Complete,
        };
        if disposition == Disposition::Complete {
            self.lives.borrow_mut().entry(number).or_default().completed = true;
        }
        disposition
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    // Guarantee: queue_listener 19, 20.
    #[test]
    #[ignore = "takes seconds: `.ci/run` runs it"]
    fn pauses_cancellations_and_snoozes_in_any_order_lose_no_message_and_begin_no_handler_too_late(steps in steps()) {
        check(&steps);
    }
}

fn check(steps: &[Step]) {
    let place = Place::new();
    let (clock, queue) = (&place.clock, &place.queue);
    let control = place.control();
    let config = QueueListenerConfig::default().tasks(1, 3).batch(4).visibility(S(12));
    // Restarts alone make no dead letter.
    let config = config.max_expiries(u32::MAX).max_attempts(40).retry(config.retry.between(S(1), S(5)));
    let listeners = [place.listener(&control, config), place.listener(&place.control(), config)];
    let model = Model::new(clock, &listeners);
    let (lives, ways, is_paused) = (&model.lives, &model.ways, &model.is_paused);
    place.time.block_on(async {
        let mut first = Box::pin(listeners[0].run(pending(), |work| model.handle(0, work)));
        let second_handler = &|work: Work| model.handle(1, work);
        let mut second = Box::pin(listeners[1].run(pending(), second_handler));
        /// Runs both listeners for this time.
        macro_rules! pass {
            ($time:expr) => {
                tokio::select! {
                    biased;
                    _ = &mut first => unreachable!(),
                    _ = &mut second => unreachable!(),
                    () = clock.sleep($time) => {}
                }
            };
        }
        for step in steps {
            match *step {
                Step::Send(way) => {
                    let number = ways.borrow().len();
                    let id = queue.send_one(Message::new(number.to_string())).await.unwrap();
                    ways.borrow_mut().push((way, id));
                }
                Step::Cancel(number) => {
                    let id = ways.borrow().get(number).map(|(_, id)| id.clone());
                    if let Some(id) = id {
                        control.cancel(queue, &id).await.unwrap();
                        // The notice arrives.
                        pass!(MS(200));
                        lives.borrow_mut().entry(number).or_default().cancelled = true;
                    }
                }
                Step::Pause => {
                    control.pause(queue).await.unwrap();
                    pass!(MS(200));
                    is_paused.set(true);
                }
                Step::Resume => {
                    is_paused.set(false);
                    control.resume(queue).await.unwrap();
                }
                Step::PauseHere => listeners[0].pause(),
                Step::ResumeHere => listeners[0].resume(),
                Step::Restart => second = Box::pin(listeners[1].run(pending(), second_handler)),
                Step::Pass(time) => pass!(time),
            }
            pass!(MS(1));
        }
        // All that still works without an end is cancelled.
        is_paused.set(false);
        control.resume(queue).await.unwrap();
        listeners[0].resume();
        let obeying: Vec<_> =
            ways.borrow().iter().filter(|(way, _)| *way == Way::Obeys).map(|(_, id)| id.clone()).collect();
        for id in &obeying {
            control.cancel(queue, id).await.unwrap();
        }
        pass!(S(1200));
        assert_eq!(queue.depth().await.unwrap().total(), 0, "nothing is left: {:?}", lives.borrow());
    });
    assert_eq!(*model.violations.borrow(), [""; 0]);
    let letters = place.time.block_on(queue.dead_letters().unwrap().peek(1000)).unwrap();
    for (number, (way, id)) in ways.borrow().iter().enumerate() {
        let life = lives.borrow().get(&number).cloned().unwrap_or_default();
        let letter: Vec<_> = letters.iter().filter(|letter| letter.id == *id).collect();
        assert_eq!(letter.len(), usize::from(!life.completed), "{number} {way:?} {life:?}");
        assert!(!life.begun_after, "a handler began after the cancellation was known: {number} {way:?}");
        if let [letter] = letter[..] {
            let reason = letter.reason.as_ref().unwrap();
            let fails = *way == Way::FailsAlways;
            assert!(
                reason.starts_with("cancelled") || (fails && reason.starts_with("exceeded max attempts")),
                "{reason}"
            );
            assert!(life.cancelled || *way == Way::Obeys || fails, "{number} {way:?} {reason}");
        }
    }
}
