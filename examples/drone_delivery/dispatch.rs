//! The order of work: owners take turns, so that a busy tenant does not delay the others.
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use steadfast::time::{Clock, Instant};
use tokio::sync::Notify;

/// Waiting jobs by owner, and deferred jobs with their times.
pub struct Dispatch<J> {
    state: Mutex<State<J>>,
    changed: Notify,
    stops: Notify,
    clock: Clock,
}

struct State<J> {
    new: Turns<J>,
    /// Deferred jobs that are due. They precede new jobs: otherwise, with few workers, new work would delay their
    /// completion.
    begun: Turns<J>,
    later: BinaryHeap<Reverse<(Instant, u64)>>,
    put_back: BTreeMap<u64, (String, J)>,
    next_id: u64,
    /// Number of unfinished jobs: waiting, deferred or in progress.
    open: usize,
    /// `true` once no more jobs will be added.
    closed: bool,
    /// `true` once waiting and deferred jobs are dropped.
    stopped: bool,
}

/// Owners with jobs, in the order of their turns, and their jobs.
struct Turns<J> {
    owners: VecDeque<String>,
    jobs: HashMap<String, VecDeque<J>>,
}

impl<J> Dispatch<J> {
    pub fn new(clock: &Clock) -> Self {
        let state = State {
            new: Turns::new(),
            begun: Turns::new(),
            later: BinaryHeap::new(),
            put_back: BTreeMap::new(),
            next_id: 0,
            open: 0,
            closed: false,
            stopped: false,
        };
        Self { state: Mutex::new(state), changed: Notify::new(), stops: Notify::new(), clock: clock.clone() }
    }

    /// Adds a job.
    pub fn push(&self, owner: &str, job: J) {
        let mut state = self.lock();
        if state.stopped {
            return;
        }
        state.open += 1;
        state.new.push(owner.to_owned(), job);
        drop(state);
        self.changed.notify_one();
    }

    /// Marks the input as complete: [`next`](Self::next) ends when the present jobs are done.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Drops waiting jobs and accepts no more: [`next`](Self::next) ends at once; jobs in progress are
    /// finished.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.closed = true;
        let waiting = state.new.clear() + state.begun.clear() + state.put_back.len();
        state.put_back.clear();
        state.later.clear();
        state.open -= waiting;
        drop(state);
        self.stops.notify_waiters();
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    /// Waits for [`stop`](Self::stop).
    pub async fn stopped(&self) {
        loop {
            let stops = self.stops.notified();
            if self.lock().stopped {
                return;
            }
            stops.await;
        }
    }

    /// Defers a job of [`next`](Self::next) until `at`.
    pub fn put_back(&self, owner: &str, job: J, at: Instant) {
        let mut state = self.lock();
        if state.stopped {
            drop(state);
            return self.done();
        }
        state.next_id += 1;
        let id = state.next_id;
        state.later.push(Reverse((at, id)));
        state.put_back.insert(id, (owner.to_owned(), job));
        drop(state);
        self.changed.notify_one();
    }

    /// Marks a job of [`next`](Self::next) as done.
    pub fn done(&self) {
        let mut state = self.lock();
        state.open -= 1;
        if state.open == 0 {
            self.changed.notify_waiters();
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for the next job; returns `None` when all are done and no more will come.
    pub async fn next(&self) -> Option<J> {
        loop {
            let changed = self.changed.notified();
            let until = {
                let mut state = self.lock();
                state.ripen(self.clock.now());
                if let Some(job) = state.begun.take().or_else(|| state.new.take()) {
                    if !state.begun.owners.is_empty() || !state.new.owners.is_empty() {
                        self.changed.notify_one(); // one more worker has something to do
                    }
                    return Some(job);
                }
                if state.open == 0 && state.closed {
                    self.changed.notify_one(); // tell the next worker, too
                    return None;
                }
                state.later.peek().map(|Reverse((at, _))| *at)
            };
            match until {
                Some(at) => {
                    tokio::select! { () = changed => {}, () = self.clock.sleep_until(at) => {} }
                }
                None => changed.await,
            }
        }
    }

    /// Returns the number of deferred jobs.
    pub fn parked(&self) -> usize {
        self.lock().put_back.len()
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    fn ripen(&mut self, now: Instant) {
        while let Some(Reverse((at, id))) = self.later.peek().copied()
            && at <= now
        {
            self.later.pop();
            if let Some((owner, job)) = self.put_back.remove(&id) {
                self.begun.push(owner, job);
            }
        }
    }
}

impl<J> Turns<J> {
    fn new() -> Self {
        Self { owners: VecDeque::new(), jobs: HashMap::new() }
    }

    fn push(&mut self, owner: String, job: J) {
        let jobs = self.jobs.entry(owner.clone()).or_default();
        if jobs.is_empty() {
            self.owners.push_back(owner);
        }
        jobs.push_back(job);
    }

    /// Drops all jobs; returns their number.
    fn clear(&mut self) -> usize {
        self.owners.clear();
        self.jobs.drain().map(|(_, jobs)| jobs.len()).sum()
    }

    fn take(&mut self) -> Option<J> {
        let owner = self.owners.pop_front()?;
        let jobs = self.jobs.get_mut(&owner)?;
        let job = jobs.pop_front()?;
        if jobs.is_empty() {
            self.jobs.remove(&owner);
        } else {
            self.owners.push_back(owner);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn owners_take_turns() {
        let (clock, time) = Clock::manual();
        let dispatch = Dispatch::new(&clock);
        for n in 0..4 {
            dispatch.push("hot", format!("hot {n}"));
        }
        dispatch.push("a", "a 0".to_owned());
        dispatch.push("b", "b 0".to_owned());
        let order: Vec<String> = (0..6).map(|_| time.block_on(dispatch.next()).unwrap()).collect();
        assert_eq!(order, ["hot 0", "a 0", "b 0", "hot 1", "hot 2", "hot 3"]);
    }

    #[test]
    fn a_job_that_was_put_back_comes_when_it_is_due_and_not_before() {
        let (clock, time) = Clock::manual();
        let dispatch = Dispatch::new(&clock);
        dispatch.push("a", 1);
        let start = time.now();
        let job = time.block_on(dispatch.next()).unwrap();
        dispatch.put_back("a", job, start + Duration::from_secs(3));
        assert_eq!(time.block_on(dispatch.next()), Some(1));
        assert_eq!(time.now() - start, Duration::from_secs(3));
        dispatch.done();
        dispatch.close();
        assert_eq!(time.block_on(dispatch.next()), None);
    }

    #[test]
    fn a_stop_drops_what_waits_and_lets_what_is_worked_on_end() {
        let (clock, time) = Clock::manual();
        let dispatch = Dispatch::new(&clock);
        (1..=4).for_each(|n| dispatch.push("a", n));
        let (put_back, worked_on) = (time.block_on(dispatch.next()).unwrap(), time.block_on(dispatch.next()).unwrap());
        dispatch.put_back("a", put_back, time.now() + Duration::from_secs(3600));
        dispatch.stop();
        dispatch.push("a", 5);
        let start = time.now();
        time.block_on(async {
            let mut next = Box::pin(dispatch.next());
            assert!(futures::poll!(&mut next).is_pending(), "one is worked on still");
            dispatch.put_back("a", worked_on, time.now() + Duration::from_secs(3600));
            assert_eq!(next.await, None);
        });
        assert_eq!((time.now(), dispatch.parked()), (start, 0));
    }

    #[test]
    fn what_was_begun_comes_before_what_is_new() {
        let (clock, time) = Clock::manual();
        let dispatch = Dispatch::new(&clock);
        (1..=3).for_each(|n| dispatch.push("a", n));
        dispatch.push("b", 10);
        let begun = time.block_on(dispatch.next()).unwrap();
        dispatch.put_back("a", begun, time.now());
        let order: Vec<i32> = (0..4).map(|_| time.block_on(dispatch.next()).unwrap()).collect();
        assert_eq!(order, [1, 10, 2, 3]);
    }
}
