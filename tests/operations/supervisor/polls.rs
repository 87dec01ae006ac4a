//! The meter of polls, and their maximum share of the time.
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use steadfast::{
    supervisor::{Child, ChildContext, SupervisorConfig, SupervisorEvent as Event},
    time::{Clock, Instant, ManualClock, TimeSource},
};

use super::{builder, told};
use crate::world::{MS, S, World};

/// Returns a child that always wants to run: each of its polls takes this time and wakes it again.
fn busy(name: &'static str, time: &ManualClock, poll: Duration) -> Child {
    let time = time.clone();
    Child::new(name, move |_| {
        let time = time.clone();
        poll_fn(move |cx| {
            time.advance(poll);
            cx.waker().wake_by_ref();
            Poll::<Result<(), String>>::Pending
        })
    })
}

// Guarantee: supervisor 7.
#[test]
fn a_child_that_always_wants_to_run_is_polled_for_its_share_of_the_time() {
    for share in [0.05, 0.25, 0.5, 0.9] {
        for poll in [MS(1), MS(50)] {
            let world = World::new();
            let child = busy("busy", &world.time, poll).max_poll_share(share);
            // While it is stopped, the child has no limit, and this one hears nothing.
            let config = SupervisorConfig::default().stop_timeout(MS(1));
            let supervisor = builder(&world, config).child(child).build().unwrap();
            let began = world.clock.now();
            world.run(S(90), supervisor.run(world.clock.sleep(S(60)))).unwrap().unwrap();
            let (state, passed) = (&supervisor.state()[0], world.clock.now() - began);
            let found = state.poll_time.as_secs_f64() / passed.as_secs_f64();
            assert!((found - share).abs() < 0.02, "{found} of {share}, polls of {poll:?}");
            assert_eq!(state.longest_poll, poll);
            assert_eq!(state.poll_time, poll * u32::try_from(state.polls).unwrap());
        }
    }
}

// Guarantee: supervisor 7.
#[test]
fn a_child_with_a_share_that_sleeps_is_polled_only_when_it_was_woken() {
    let world = World::new();
    let clock = world.clock.clone();
    let turns = Arc::new(AtomicU64::new(0));
    let counted = turns.clone();
    let child = Child::new("ticks", move |_| {
        let (clock, turns) = (clock.clone(), counted.clone());
        async move {
            loop {
                clock.sleep(S(1)).await;
                turns.fetch_add(1, SeqCst);
            }
            #[allow(unreachable_code, reason = "the type of the result")]
            Ok::<_, String>(())
        }
    });
    let supervisor = builder(&world, SupervisorConfig::default()).child(child.max_poll_share(0.25)).build().unwrap();
    world.run(S(100), supervisor.run(world.clock.sleep(MS(60_500)))).unwrap().unwrap();
    let state = &supervisor.state()[0];
    // While it is being stopped, the child ticks on for ten seconds, and then it is dropped.
    assert_eq!(turns.load(SeqCst), 70);
    assert!(state.polls <= 72, "{}", state.polls);
}

// Guarantee: supervisor 7.
#[test]
fn a_poll_above_the_limit_is_an_event_that_names_the_child() {
    let world = World::new();
    let (built, events) = told(builder(&world, SupervisorConfig::default()));
    let child = busy("busy", &world.time, MS(101)).max_poll_share(0.5);
    let supervisor = built.child(child).build().unwrap();
    world.run(S(30), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
    assert!(events.all().contains(&Event::SlowPoll { child: "busy".into(), took: MS(101) }));
}

/// A clock whose timers fire on whole milliseconds, as those of tokio do.
struct Coarse(ManualClock);

impl TimeSource for Coarse {
    fn now(&self) -> Instant {
        self.0.now()
    }
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let millis = at.as_nanos().div_ceil(1_000_000);
        Box::pin(self.0.clock().sleep_until(Instant::from_nanos(millis * 1_000_000)))
    }
}

// Guarantee: supervisor 7.
#[test]
fn short_polls_get_their_share_on_timers_of_a_millisecond() {
    for (share, micros) in [(0.25, 20), (0.25, 300), (0.05, 20), (0.5, 50)] {
        let mut world = World::new();
        world.clock = Clock::from_source(Coarse(world.time.clone()));
        let child = busy("busy", &world.time, Duration::from_micros(micros)).max_poll_share(share);
        let supervisor = builder(&world, SupervisorConfig::default().stop_timeout(MS(1))).child(child).build().unwrap();
        let began = world.clock.now();
        world.run(S(9), supervisor.run(world.clock.sleep(S(5)))).unwrap().unwrap();
        let found = supervisor.state()[0].poll_time.as_secs_f64() / (world.clock.now() - began).as_secs_f64();
        assert!((found - share).abs() < 0.02, "{found} of {share}, polls of {micros} us");
    }
}

// Guarantee: supervisor 7.
#[test]
fn a_child_in_a_long_pause_hears_the_stop() {
    let world = World::new();
    let time = world.time.clone();
    let child = Child::new("slow", move |cx: ChildContext| {
        let time = time.clone();
        poll_fn(move |task| {
            if cx.is_stopping() {
                return Poll::Ready(Ok::<_, String>(()));
            }
            time.advance(S(5));
            task.waker().wake_by_ref();
            Poll::Pending
        })
    });
    let supervisor = builder(&world, SupervisorConfig::default()).child(child.max_poll_share(0.01)).build().unwrap();
    let report = world.run(S(60), supervisor.run(world.clock.sleep(S(20)))).unwrap().unwrap();
    assert!(report.unstopped.is_empty(), "{report:?}");
}

// Guarantee: supervisor 7.
#[test]
fn a_child_without_a_meter_is_not_counted_and_a_slow_drop_is_told() {
    struct Slow(ManualClock);
    impl Drop for Slow {
        fn drop(&mut self) {
            self.0.advance(MS(300));
        }
    }
    for is_metered in [true, false] {
        let world = World::new();
        let time = world.time.clone();
        let child = Child::new("slow", move |cx: ChildContext| {
            let slow = Slow(time.clone());
            async move {
                let _slow = &slow;
                cx.stopping().await;
                std::future::pending::<Result<(), String>>().await
            }
        });
        let child = if is_metered { child } else { child.unmetered() };
        let (built, events) = told(builder(&world, SupervisorConfig::default().stop_timeout(S(1))));
        let supervisor = built.child(child).build().unwrap();
        world.run(S(60), supervisor.run(world.clock.sleep(S(1)))).unwrap().unwrap();
        let state = &supervisor.state()[0];
        assert_eq!((state.polls > 0, state.poll_time), (is_metered, Duration::ZERO));
        let told = Event::SlowPoll { child: "slow".into(), took: MS(300) };
        assert_eq!(events.all().contains(&told), is_metered, "{:?}", events.all());
    }
}
