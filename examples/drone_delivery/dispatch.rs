//! Turns: a limited number of tasks works at once, and owners take turns, so that a busy tenant does not delay the others.
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{Notify, oneshot};

/// A number of turns, and the tasks that wait for one. Clones share them.
#[derive(Clone)]
pub struct Dispatch(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    stops: Notify,
}

struct State {
    free: usize,
    /// Owners with waiting tasks, in the order of their turns.
    owners: VecDeque<String>,
    tasks: HashMap<String, VecDeque<oneshot::Sender<Turn>>>,
    /// `true` once no more turns are given.
    stopped: bool,
}

/// A turn; given to the next waiting task on drop.
pub struct Turn(Option<Dispatch>);

impl Dispatch {
    pub fn new(turns: usize) -> Self {
        let state = State { free: turns, owners: VecDeque::new(), tasks: HashMap::new(), stopped: false };
        Self(Arc::new(Inner { state: Mutex::new(state), stops: Notify::new() }))
    }

    /// Waits for a turn; returns `None` after [`stop`](Self::stop).
    pub async fn turn(&self, owner: &str) -> Option<Turn> {
        let given = {
            let mut state = self.lock();
            if state.stopped {
                return None;
            }
            if state.free > 0 {
                state.free -= 1;
                return Some(Turn(Some(self.clone())));
            }
            state.push(owner)
        };
        given.await.ok()
    }

    /// Gives no more turns. Tasks that have one keep it.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        state.owners.clear();
        state.tasks.clear();
        drop(state);
        self.0.stops.notify_waiters();
    }

    /// Waits for [`stop`](Self::stop).
    pub async fn stopped(&self) {
        loop {
            let stops = self.0.stops.notified();
            if self.lock().stopped {
                return;
            }
            stops.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(dispatch) = self.0.take() else { return };
        loop {
            let next = {
                let mut state = dispatch.lock();
                let Some(next) = state.take() else {
                    state.free += 1;
                    return;
                };
                next
            };
            match next.send(Self(Some(dispatch.clone()))) {
                Ok(()) => return,
                Err(mut unused) => unused.0 = None, // the task was dropped: the next one
            }
        }
    }
}

impl State {
    fn push(&mut self, owner: &str) -> oneshot::Receiver<Turn> {
        let (give, given) = oneshot::channel();
        let tasks = self.tasks.entry(owner.to_owned()).or_default();
        if tasks.is_empty() {
            self.owners.push_back(owner.to_owned());
        }
        tasks.push_back(give);
        given
    }

    fn take(&mut self) -> Option<oneshot::Sender<Turn>> {
        let owner = self.owners.pop_front()?;
        let tasks = self.tasks.get_mut(&owner)?;
        let next = tasks.pop_front()?;
        if tasks.is_empty() {
            self.tasks.remove(&owner);
        } else {
            self.owners.push_back(owner);
        }
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, future::join_all};

    use super::*;

    #[tokio::test]
    async fn owners_take_turns() {
        let (dispatch, order) = (Dispatch::new(1), Mutex::new(Vec::new()));
        let held = dispatch.turn("first").await;
        let task = |name: &'static str| {
            let (dispatch, order) = (&dispatch, &order);
            async move {
                let _turn = dispatch.turn(name.split(' ').next().unwrap()).await.unwrap();
                order.lock().unwrap().push(name);
            }
        };
        let mut tasks = Box::pin(join_all(["hot 0", "hot 1", "hot 2", "a 0", "b 0"].map(task)));
        assert!(tasks.as_mut().now_or_never().is_none(), "the only turn is taken");
        drop(held);
        tasks.await;
        assert_eq!(*order.lock().unwrap(), ["hot 0", "a 0", "b 0", "hot 1", "hot 2"]);
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_loses_no_turn() {
        let dispatch = Dispatch::new(1);
        let held = dispatch.turn("a").await;
        let (mut dropped, mut given) = (Box::pin(dispatch.turn("b")), Box::pin(dispatch.turn("c")));
        assert!(dropped.as_mut().now_or_never().is_none() && given.as_mut().now_or_never().is_none());
        drop(dropped);
        drop(held);
        // It was given, and is dropped with the future that did not take it.
        drop(given);
        assert!(dispatch.turn("d").now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn after_a_stop_no_turn_is_given_and_those_given_are_kept() {
        let dispatch = Dispatch::new(1);
        let held = dispatch.turn("a").await;
        let mut waits = Box::pin(dispatch.turn("a"));
        assert!(waits.as_mut().now_or_never().is_none());
        dispatch.stop();
        assert!(waits.await.is_none() && dispatch.turn("b").await.is_none() && held.is_some());
        dispatch.stopped().await;
    }
}
