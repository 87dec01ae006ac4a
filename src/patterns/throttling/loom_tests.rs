//! Model checks of permits and rates under every interleaving of two threads.
use std::task::Waker;

use loom::{sync::Arc, thread};

use super::{
    AdaptiveLimitConfig, AdaptiveLimiter, QueueOrder, Quota,
    concurrency::semaphore::{Admission, Semaphore},
    rate::gcra::{Gcra, Pace},
    shed::gauge::Due,
};
use crate::{
    outcome::Reason,
    sync::{AtomicU64, Mutex, Ordering},
    time::Instant,
    window::{Bound, ChangingWindow, TimeWindow},
};

fn semaphore(capacity: u32, queue: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(capacity, queue, QueueOrder::Fifo))
}

#[test]
fn loom_permits_are_taken_once() {
    loom::model(|| {
        let semaphore = semaphore(1, 0);
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.try_take(1));
        let ours = semaphore.try_take(1);
        assert!(ours ^ thread.join().unwrap());
        assert_eq!(semaphore.free(), 0);
    });
}

#[test]
fn loom_a_permit_given_back_is_never_missed_by_a_call_that_begins_to_wait() {
    for order in [QueueOrder::Fifo, QueueOrder::NewestFirst] {
        loom::model(move || {
            let semaphore = Arc::new(Semaphore::new(1, 4, order));
            assert!(semaphore.try_take(1));
            let theirs = semaphore.clone();
            let thread = thread::spawn(move || theirs.give_back(1));
            let wish = semaphore.take_or_wait(1).unwrap();
            thread.join().unwrap();
            if let Admission::Waits(id) = wish {
                assert_eq!(semaphore.poll(id, Waker::noop()), Some(Ok(())));
            }
            assert_eq!(semaphore.free(), 0);
            semaphore.give_back(1);
            assert!(semaphore.try_take(1), "the mark is cleared with the last waiting call");
        });
    }
}

/// A waker that sets a mark.
struct Woken(std::sync::atomic::AtomicBool);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

#[test]
fn loom_a_call_that_polled_in_vain_is_woken() {
    loom::model(|| {
        let semaphore = semaphore(1, 4);
        assert!(semaphore.try_take(1));
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        let woken = std::sync::Arc::new(Woken(false.into()));
        let mut in_vain = None;
        if let Admission::Waits(id) = semaphore.take_or_wait(1).unwrap() {
            in_vain = semaphore.poll(id, &Waker::from(woken.clone())).is_none().then_some(id);
        }
        thread.join().unwrap();
        if let Some(id) = in_vain {
            assert!(woken.0.load(std::sync::atomic::Ordering::SeqCst), "a lost wake-up");
            assert_eq!(semaphore.poll(id, Waker::noop()), Some(Ok(())));
        }
        assert_eq!(semaphore.free(), 0);
    });
}

#[test]
fn loom_rejecting_the_oldest_call_loses_no_permit() {
    loom::model(|| {
        let semaphore = Arc::new(Semaphore::new(1, 1, QueueOrder::NewestFirst));
        assert!(semaphore.try_take(1));
        let Ok(Admission::Waits(oldest)) = semaphore.take_or_wait(1) else { panic!("it is taken") };
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        let newest = semaphore.take_or_wait(1).unwrap();
        thread.join().unwrap();
        let oldest_got = match semaphore.poll(oldest, Waker::noop()) {
            Some(Ok(())) => 1,
            Some(Err(reason)) => {
                assert_eq!(reason, Reason::QueueFull);
                0
            }
            None => {
                semaphore.leave(oldest, 1);
                0
            }
        };
        let newest_got = match newest {
            Admission::Granted => 1,
            Admission::Waits(id) => {
                let got = semaphore.poll(id, Waker::noop()) == Some(Ok(()));
                semaphore.leave(id, 1);
                i64::from(got)
            }
        };
        assert_eq!(oldest_got + newest_got + semaphore.free(), 1);
        semaphore.give_back((oldest_got + newest_got) as u32);
        assert!(semaphore.try_take(1), "no mark is left behind");
    });
}

#[test]
fn loom_leaving_the_queue_while_being_served_loses_no_permit() {
    loom::model(|| {
        let semaphore = semaphore(1, 4);
        assert!(semaphore.try_take(1));
        let Ok(Admission::Waits(id)) = semaphore.take_or_wait(1) else { panic!("it is taken") };
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        semaphore.leave(id, 1);
        thread.join().unwrap();
        assert_eq!((semaphore.free(), semaphore.size().1), (1, 0));
        assert!(semaphore.try_take(1));
    });
}

#[test]
fn loom_leaving_the_queue_lets_the_next_call_run() {
    loom::model(|| {
        let semaphore = semaphore(2, 4);
        assert!(semaphore.try_take(2));
        let Ok(Admission::Waits(large)) = semaphore.take_or_wait(2) else { panic!("it is taken") };
        let Ok(Admission::Waits(small)) = semaphore.take_or_wait(1) else { panic!("it is taken") };
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        semaphore.leave(large, 2);
        thread.join().unwrap();
        assert_eq!(semaphore.poll(small, Waker::noop()), Some(Ok(())));
        assert_eq!(semaphore.free(), 0);
    });
}

#[test]
fn loom_a_resize_settles_all_waiting_calls() {
    loom::model(|| {
        let semaphore = semaphore(2, 4);
        assert!(semaphore.try_take(1));
        let Ok(Admission::Waits(id)) = semaphore.take_or_wait(2) else { panic!("one is taken") };
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        semaphore.resize(1);
        thread.join().unwrap();
        match semaphore.poll(id, Waker::noop()) {
            Some(Ok(())) => semaphore.give_back(2),
            settled => assert_eq!(settled, Some(Err(Reason::TooLarge))),
        }
        assert_eq!((semaphore.free(), semaphore.size()), (1, (1, 0)));
    });
}

#[test]
fn loom_a_rate_is_never_exceeded() {
    loom::model(|| {
        let gcra = Arc::new(Gcra::new(Pace::new(&Quota::per_second(1).burst(3))));
        let theirs = gcra.clone();
        let now = 1_000_000_000;
        let thread = thread::spawn(move || (0..2).filter(|_| theirs.take(1, now).is_ok()).count());
        let ours = (0..2).filter(|_| gcra.take(1, now).is_ok()).count();
        assert_eq!(ours + thread.join().unwrap(), 3);
    });
}

/// Bug: the interval and the span of a pace were read one after the other. A call that raced with
/// a change combined the old interval with the new span, and took more permits than either burst.
#[test]
fn loom_a_call_never_combines_two_paces() {
    let (old, new) = (Pace { interval: 1, span: 3 }, Pace { interval: 1_000, span: 3_000 });
    let now = 1_000_000_000;
    let changes: [fn(&Gcra, Pace, u64); 2] =
        [|gcra, pace, now| gcra.change(pace, now, 0), |gcra, pace, now| gcra.restart(pace, 0, now)];
    for (change, from, to) in changes.into_iter().flat_map(|change| [(change, old, new), (change, new, old)]) {
        loom::model(move || {
            let gcra = Arc::new(Gcra::new(from));
            let theirs = gcra.clone();
            let thread = thread::spawn(move || {
                change(&theirs, to, now);
                change(&theirs, from, now);
            });
            assert!([from, to].contains(&gcra.pace()));
            assert!(gcra.take(4, now).is_err(), "more than either burst");
            thread.join().unwrap();
        });
    }
}

#[test]
fn loom_a_bucket_that_turns_over_loses_nothing() {
    loom::model(|| {
        let window = Arc::new(TimeWindow::new(std::time::Duration::from_secs(2), 2));
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        window.add(0, at(10), 7);
        let theirs = window.clone();
        let thread = thread::spawn(move || theirs.add(0, at(12), 1));
        window.add(0, at(12), 2);
        thread.join().unwrap();
        assert_eq!(window.sum(0, at(12)), 3);
    });
}

#[test]
fn loom_a_shorter_queue_rejects_only_excess_calls() {
    loom::model(|| {
        let semaphore = semaphore(1, 4);
        assert!(semaphore.try_take(1));
        let Ok(Admission::Waits(first)) = semaphore.take_or_wait(1) else { panic!("it is taken") };
        let Ok(Admission::Waits(second)) = semaphore.take_or_wait(1) else { panic!("it is taken") };
        let theirs = semaphore.clone();
        let thread = thread::spawn(move || theirs.give_back(1));
        semaphore.change(1, 0, QueueOrder::Fifo, || ());
        thread.join().unwrap();
        let results = [first, second].map(|id| semaphore.poll(id, Waker::noop()).expect("all calls are settled"));
        let got = results.iter().filter(|result| result.is_ok()).count() as i64;
        assert_eq!(results[1], Err(Reason::QueueFull));
        assert_eq!((semaphore.free() + got, semaphore.size().1), (1, 0));
        if got > 0 {
            semaphore.give_back(got as u32);
        }
        assert!(semaphore.try_take(1), "no mark is left behind");
    });
}

/// `then_some` was once used here: a call that lost the election ended the winner's reading.
#[test]
fn loom_one_task_at_a_time_reads_the_gauges() {
    loom::model(|| {
        let due = Arc::new(Due::new());
        let readers = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let read = move |due: &Due, readers: &loom::sync::atomic::AtomicU32| {
            if let Some(mut turn) = due.take(1_000) {
                turn.again_after(std::time::Duration::from_nanos(100));
                assert_eq!(readers.fetch_add(1, loom::sync::atomic::Ordering::SeqCst), 0, "two read at once");
                readers.fetch_sub(1, loom::sync::atomic::Ordering::SeqCst);
                return true;
            }
            false
        };
        let theirs = (due.clone(), readers.clone());
        let thread = thread::spawn(move || read(&theirs.0, &theirs.1));
        let ours = read(&due, &readers);
        assert!(ours ^ thread.join().unwrap(), "one reads, and then it is not due");
        assert!(!due.is(1_099) && due.is(1_100));
    });
}

#[test]
fn loom_a_reading_by_old_settings_is_repeated_at_once() {
    loom::model(|| {
        let due = Arc::new(Due::new());
        let changed = Arc::new(Mutex::new(false));
        let theirs = (due.clone(), changed.clone());
        let thread = thread::spawn(move || {
            let mut turn = theirs.0.take(1_000).expect("no other task takes it");
            let by_old = !*theirs.1.lock();
            turn.again_after(std::time::Duration::from_secs(3_600));
            by_old
        });
        *changed.lock() = true;
        due.now();
        let by_old = thread.join().unwrap();
        assert!(due.is(1_000) || !by_old);
    });
}

#[test]
fn loom_a_count_is_taken_back_once() {
    loom::model(|| {
        let window = Arc::new(ChangingWindow::new(std::time::Duration::from_nanos(20), 2));
        let at = Instant::from_nanos(1_000);
        let stamp = window.add(at, 1, &window);
        let theirs = window.clone();
        let thread = thread::spawn(move || theirs.take_back(stamp));
        window.add(at, 1, &window);
        thread.join().unwrap();
        assert_eq!(window.sum(at), 1);
    });
}

/// A change of the span keeps earlier counts; a count that races with it is kept or missed, never
/// doubled. A late count once took over the bucket that held all others, and they were lost.
#[test]
fn loom_a_window_that_changes_counts_nothing_twice() {
    loom::model(|| {
        let window = Arc::new(ChangingWindow::new(std::time::Duration::from_nanos(20), 2));
        let at = Instant::from_nanos(1_000);
        let stamp = window.add(at, 1, &window);
        let theirs = window.clone();
        let thread = thread::spawn(move || theirs.add_at(stamp));
        ChangingWindow::set_spans([&*window], std::time::Duration::from_nanos(40), at);
        let counted = thread.join().unwrap();
        let sum = window.sum(at);
        assert!(sum == 1 || (counted && sum == 2), "{sum}");
    });
}

/// A decision that is made while the settings change does not stand if it was made by the old ones.
#[test]
fn loom_a_decision_by_old_settings_does_not_stand() {
    loom::model(|| {
        let window = ChangingWindow::new(std::time::Duration::from_nanos(20), 2);
        let word = window.word(window.stamp(Instant::from_nanos(1_000)));
        // The setting: the number of events below which the decision stands.
        let shared = Arc::new((AtomicU64::new(5), Bound::new()));
        let theirs = shared.clone();
        let thread = thread::spawn(move || {
            let before = theirs.1.load();
            theirs.1.set(before, word, theirs.0.load(Ordering::Relaxed));
        });
        shared.0.store(2, Ordering::Relaxed);
        shared.1.clear();
        thread.join().unwrap();
        assert!(!Bound::is_above(shared.1.load(), word + 2));
    });
}

/// Two tasks change the limit at once, and each then sets the semaphore's capacity.
#[test]
fn loom_an_adaptive_limit_s_capacity_follows_its_last_change() {
    loom::model(|| {
        let config = AdaptiveLimitConfig::default().queue(0).max_wait(std::time::Duration::from_secs(1));
        let limiter = AdaptiveLimiter::new(config.limits(9, 1, 9)).unwrap();
        let theirs = limiter.clone();
        let thread = thread::spawn(move || theirs.reconfigure(config.limits(5, 1, 5)).unwrap());
        limiter.reconfigure(config.limits(3, 1, 3)).unwrap();
        thread.join().unwrap();
        // It has learned nothing, so it starts at the `initial` of the last change.
        assert_eq!((limiter.limit(), limiter.in_flight()), (limiter.config().initial, 0));
    });
}
