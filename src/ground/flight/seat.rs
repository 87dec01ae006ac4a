//! A place in a flight: the future of its result.
use std::{
    any::TypeId,
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use futures_util::future::BoxFuture;

use super::{Flight, Flights, Given, Phase, State};
use crate::sync::MutexGuard;

/// A place in a flight. As a future it gives the result, or `None` where the flight was lost: it panicked in somebody's hands.
///
/// Dropped, it is left; was it the driver's, another is woken to go on. The last one takes the flight with it, or leaves it to whoever
/// finishes what is unattended.
pub(crate) struct Seat<K: Hash + Eq, T> {
    pub(super) flights: Flights<K, T>,
    pub(super) flight: Arc<Flight<K, T>>,
    number: u64,
    /// It had its result: there is nothing to leave.
    over: bool,
    /// The polls of the work when this seat last asked for them.
    polls: u64,
}

impl<K: Hash + Eq, T> Seat<K, T> {
    /// The leader's, who is counted already.
    pub(super) fn first(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        Self { flights, flight, number: 1, over: false, polls: 0 }
    }

    /// One more.
    pub(super) fn join(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        let mut state = flight.state.lock();
        let (number, polls) = (state.seat(), state.polls);
        drop(state);
        Self { flights, flight, number, over: false, polls }
    }

    /// Returns a number that all seats of this flight share, and no other flight has while one of them lives.
    pub(crate) fn flight_id(&self) -> usize {
        Arc::as_ptr(&self.flight).addr()
    }

    /// One more seat, for the background; `None` where one is there already, or the flight is over.
    pub(crate) fn for_background(&self) -> Option<Self> {
        let mut state = self.flight.state.lock();
        if state.in_background || !matches!(state.phase, Phase::Under) {
            return None;
        }
        state.in_background = true;
        let number = state.seat();
        drop(state);
        Some(Self { flights: self.flights.clone(), flight: self.flight.clone(), number, over: false, polls: 0 })
    }

    /// Notes that this seat is the background's.
    pub(crate) fn in_background(self) -> Self {
        self.flight.state.lock().in_background = true;
        self
    }

    /// Makes this seat the driver if nobody has polled the work since this seat last called this. The driver so far waits like the others.
    ///
    /// A task that is neither polled nor dropped would hold up all who wait for its work.
    pub(crate) fn take_over(&mut self) {
        let mut state = self.flight.state.lock();
        let stalled = state.polls == self.polls && state.driver != Some(self.number) && state.work.is_some();
        self.polls = state.polls;
        if !stalled {
            return;
        }
        let before = state.driver.replace(self.number).zip(state.driver_waker.take());
        let old = before.and_then(|(driver, waker)| state.waiting.insert(driver, waker));
        drop(state);
        drop(old);
    }

    /// Returns whether the work is, or was, of this type.
    pub(crate) fn works_as(&self, work: TypeId) -> bool {
        self.flight.state.lock().work_type == Some(work)
    }

    fn end(&mut self, result: Option<Given<T>>) -> Poll<Option<Given<T>>> {
        self.over = true;
        Poll::Ready(result)
    }
}

impl<T> State<T> {
    fn seat(&mut self) -> u64 {
        self.seats += 1;
        self.seated += 1;
        self.seated
    }
}

impl<K: Hash + Eq, T> Future for Seat<K, T> {
    type Output = Option<Given<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Given<T>>> {
        let me = &mut *self;
        let mut state = me.flight.state.lock();
        match &state.phase {
            Phase::Done(result) => {
                let result = result.clone();
                drop(state);
                return me.end(Some(Given::Shared(result)));
            }
            Phase::Lost => {
                drop(state);
                return me.end(None);
            }
            Phase::Under => {}
        }
        let drives = state.driver.is_none_or(|driver| driver == me.number);
        let Some(mut work) = state.work.take_if(|_| drives) else {
            let old = state.wait(me.number, cx.waker());
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        state.driver = Some(me.number);
        state.polls += 1;
        let old = (state.waiting.remove(&me.number), state.driver_waker.take_if(|waker| !waker.will_wake(cx.waker())));
        drop(state);
        drop(old);
        let mut hands = Hands { flight: &*me.flight, flights: &me.flights, arc: &me.flight, safe: false };
        let polled = work.as_mut().poll(cx);
        hands.safe = true;
        let Poll::Ready(result) = polled else {
            let waker = cx.waker().clone();
            let mut state = hands.flight.state.lock();
            state.work = Some(work);
            let old = state.driver_waker.replace(waker);
            drop(state);
            drop(old);
            return Poll::Pending;
        };
        drop(hands);
        // The work may have landed its flight itself.
        if !me.flight.off.load(Relaxed) {
            me.flights.take_off(&mut me.flights.shard(me.flight.hash), &me.flight);
        }
        let state = me.flight.state.lock();
        // No seat can be added any more: the flight is in no table, and seats for the background are made from seats.
        let result = if state.seats == 1 {
            end(state, Phase::Lost);
            Given::Own(result)
        } else {
            let result = Arc::new(result);
            end(state, Phase::Done(result.clone()));
            Given::Shared(result)
        };
        me.end(Some(result))
    }
}

impl<T> State<T> {
    /// Gives the waker before, to be dropped outside the lock.
    fn wait(&mut self, number: u64, waker: &Waker) -> Option<Waker> {
        match self.waiting.get(&number) {
            Some(old) if old.will_wake(waker) => None,
            _ => self.waiting.insert(number, waker.clone()),
        }
    }
}

/// Ends a flight, and tells all who wait.
fn end<T>(mut state: MutexGuard<'_, State<T>>, phase: Phase<T>) {
    state.phase = phase;
    let (waiting, work) = (std::mem::take(&mut state.waiting), state.work.take());
    let driver = state.driver_waker.take();
    drop(state);
    if !waiting.is_empty() {
        waiting.into_values().for_each(Waker::wake);
    }
    drop((work, driver));
}

/// The work while it is polled: should it panic, the flight is lost.
struct Hands<'a, K: Hash + Eq, T> {
    flight: &'a Flight<K, T>,
    flights: &'a Flights<K, T>,
    arc: &'a Arc<Flight<K, T>>,
    safe: bool,
}

impl<K: Hash + Eq, T> Drop for Hands<'_, K, T> {
    fn drop(&mut self) {
        if !self.safe {
            self.flights.take_off(&mut self.flights.shard(self.flight.hash), self.arc);
            end(self.flight.state.lock(), Phase::Lost);
        }
    }
}

/// What has to be done for a flight that somebody left, outside its locks.
enum Left<T> {
    Nothing,
    /// Another goes on.
    Wake(Waker),
    /// Nobody is left.
    Drop(Option<BoxFuture<'static, T>>),
    Finish(u64),
}

impl<K: Hash + Eq, T> Seat<K, T> {
    fn leave(&self) -> Left<T> {
        // The shard first: who joins must not find a flight that nobody attends any more.
        let mut shard = self.flights.shard(self.flight.hash);
        let mut state = self.flight.state.lock();
        state.seats -= 1;
        let mut old = (state.waiting.remove(&self.number), None);
        if state.driver == Some(self.number) {
            state.driver = None;
            old.1 = state.driver_waker.take();
        }
        let left = match state.phase {
            Phase::Done(_) | Phase::Lost => Left::Nothing,
            // The leader was dropped before it said what the work is; nobody else can.
            Phase::Under if state.work.is_none() && state.driver.is_none() => {
                self.flights.take_off(&mut shard, &self.flight);
                drop(shard);
                end(state, Phase::Lost);
                return Left::Nothing;
            }
            Phase::Under if state.seats > 0 => match (state.driver, state.waiting.values().next()) {
                // It stays among those who wait until it is polled: should it leave before, the next is woken.
                (None, Some(waker)) => Left::Wake(waker.clone()),
                // The others were not polled yet: the first that is drives.
                _ => Left::Nothing,
            },
            Phase::Under if self.flights.0.unattended.is_some() && !state.in_background => {
                state.in_background = true;
                Left::Finish(state.seat())
            }
            Phase::Under => {
                self.flights.take_off(&mut shard, &self.flight);
                state.phase = Phase::Lost;
                Left::Drop(state.work.take())
            }
        };
        drop(state);
        drop(shard);
        drop(old);
        left
    }
}

impl<K: Hash + Eq, T> Drop for Seat<K, T> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        match self.leave() {
            Left::Nothing => {}
            Left::Wake(waker) => waker.wake(),
            Left::Drop(work) => drop(work),
            Left::Finish(number) => {
                let (flights, flight) = (self.flights.clone(), self.flight.clone());
                let seat = Self { flights, flight, number, over: false, polls: 0 };
                match &self.flights.0.unattended {
                    Some(unattended) => unattended(seat),
                    None => drop(seat),
                }
            }
        }
    }
}
