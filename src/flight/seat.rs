//! A place in a flight: the future of its result.
use std::{
    future::Future,
    hash::Hash,
    pin::Pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Context, Poll, Waker},
};

use super::{Flight, Flights, Phase, State};
use crate::{port::BoxFuture, sync::MutexGuard};

/// A place in a flight. As a future it gives the result, or `None` where the flight was lost: it panicked in somebody's hands.
///
/// Dropped, it is left; was it the driver's, another is woken to go on. The last one takes the flight with it, or leaves it to whoever
/// finishes what is unattended.
pub(crate) struct Seat<K: Hash + Eq, T: Clone> {
    pub(super) flights: Flights<K, T>,
    pub(super) flight: Arc<Flight<K, T>>,
    number: u64,
    /// It had its result: there is nothing to leave.
    over: bool,
}

impl<K: Hash + Eq, T: Clone> Seat<K, T> {
    /// The leader's, who is counted already.
    pub(super) fn first(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        Self { flights, flight, number: 1, over: false }
    }

    /// One more.
    pub(super) fn join(flights: Flights<K, T>, flight: Arc<Flight<K, T>>) -> Self {
        let number = flight.state.lock().seat();
        Self { flights, flight, number, over: false }
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
        Some(Self { flights: self.flights.clone(), flight: self.flight.clone(), number, over: false })
    }

    /// Notes that this seat is the background's.
    pub(crate) fn in_background(self) -> Self {
        self.flight.state.lock().in_background = true;
        self
    }

    fn end(&mut self, result: Option<T>) -> Poll<Option<T>> {
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

impl<K: Hash + Eq, T: Clone> Future for Seat<K, T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let me = &mut *self;
        let mut state = me.flight.state.lock();
        match &state.phase {
            Phase::Done(result) => {
                let result = result.clone();
                drop(state);
                return me.end(Some(result));
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
        let old = state.waiting.remove(&me.number);
        drop(state);
        drop(old);
        let mut hands = Hands { flight: &*me.flight, flights: &me.flights, arc: &me.flight, safe: false };
        let polled = work.as_mut().poll(cx);
        hands.safe = true;
        let Poll::Ready(result) = polled else {
            hands.flight.state.lock().work = Some(work);
            return Poll::Pending;
        };
        drop(hands);
        // The work may have landed its flight itself.
        if !me.flight.off.load(Relaxed) {
            me.flights.take_off(&mut me.flights.shard(me.flight.hash), &me.flight);
        }
        end(me.flight.state.lock(), Phase::Done(result.clone()));
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
    drop(state);
    waiting.into_values().for_each(Waker::wake);
    drop(work);
}

/// The work while it is polled: should it panic, the flight is lost.
struct Hands<'a, K: Hash + Eq, T: Clone> {
    flight: &'a Flight<K, T>,
    flights: &'a Flights<K, T>,
    arc: &'a Arc<Flight<K, T>>,
    safe: bool,
}

impl<K: Hash + Eq, T: Clone> Drop for Hands<'_, K, T> {
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

impl<K: Hash + Eq, T: Clone> Seat<K, T> {
    fn leave(&self) -> Left<T> {
        // The shard first: who joins must not find a flight that nobody attends any more.
        let mut shard = self.flights.shard(self.flight.hash);
        let mut state = self.flight.state.lock();
        state.seats -= 1;
        let old = state.waiting.remove(&self.number);
        if state.driver == Some(self.number) {
            state.driver = None;
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

impl<K: Hash + Eq, T: Clone> Drop for Seat<K, T> {
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
                let seat = Self { flights, flight, number, over: false };
                match &self.flights.0.unattended {
                    Some(unattended) => unattended(seat),
                    None => drop(seat),
                }
            }
        }
    }
}
