//! The record of a run, with times: attempts, steps, requests, state changes of breakers.
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use steadfast::{
    cache_aside::CacheAsideStats,
    circuit_breaker::{CircuitBreakerEvent, State},
    observe::{Missed, Subscription},
    time::{Clock, Instant},
};
use uuid::Uuid;

use crate::{ingest::Accepted, interrupt::Interrupt, probes::Probed, request::Request, services::Service};

/// One HTTP call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub at: Duration,
    pub took: Duration,
    /// 1 is the first attempt of a step.
    pub attempt: u32,
    pub ok: bool,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Scheduled,
    Rejected,
    Lost(String),
}

/// One request's end.
#[derive(Debug, Clone)]
pub struct Done {
    pub at: Duration,
    /// Time since the work on it began.
    pub took: Duration,
    pub id: Uuid,
    pub owner: String,
    pub package: String,
    /// `true` if it needed transport.
    pub transport: bool,
    pub end: End,
}

impl Done {
    pub fn new(request: Request, at: Duration, took: Duration, end: End) -> Self {
        let transport = request.needs_transport();
        Self { at, took, id: request.id, owner: request.owner, package: request.package.id, transport, end }
    }
}

/// A breaker's state from a time on.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub at: Duration,
    pub state: State,
}

/// The whole record of a run.
pub struct Record {
    clock: Clock,
    start: Instant,
    /// The owner whose approvals are recorded.
    suspended: Option<String>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default, Clone)]
pub struct Inner {
    pub calls: [Vec<Call>; 5],
    /// Duration of each successful step, with its retries.
    pub steps: [Vec<Duration>; 5],
    pub turns: [Vec<Turn>; 5],
    pub done: Vec<Done>,
    /// Requests that earlier runs on the same store finished: in the classes and the audit, not in the figures.
    pub before: Vec<Done>,
    pub put_back: u64,
    /// Time of the last approved request of the suspended owner.
    pub approved: Option<Duration>,
    /// Figures of the arrival of requests.
    pub accepted: Accepted,
    /// Answers to the probes of the job.
    pub probed: Probed,
    /// The signal that stopped the work before its end.
    pub interrupted: Option<Interrupt>,
    /// Figures of the account cache, if there is one.
    pub looked_up: Option<CacheAsideStats>,
    /// Number of missed breaker events; the recorded states may lack some.
    pub missed: u64,
}

impl Record {
    pub fn new(clock: &Clock, start: Instant, suspended: Option<String>) -> Self {
        Self { clock: clock.clone(), start, suspended, inner: Mutex::default() }
    }

    pub fn now(&self) -> Duration {
        self.clock.now() - self.start
    }

    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to record a call. If the record is dropped before its end, the call was cancelled, and failed.
    pub fn call(&self, service: Service, attempt: u32) -> Recording<'_> {
        Recording { record: self, service, attempt, at: self.now(), ok: false }
    }

    pub fn step(&self, service: Service, took: Duration) {
        self.lock().steps[service as usize].push(took);
    }

    /// Records an approved request of this owner.
    pub fn approved(&self, owner: &str) {
        if self.suspended.as_deref() == Some(owner) {
            self.lock().approved = Some(self.now());
        }
    }

    /// Records the events of a breaker until it is dropped and all events are read.
    pub async fn follow(&self, service: Service, mut events: Subscription<CircuitBreakerEvent>) {
        loop {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(Missed::Events(n)) => {
                    self.lock().missed += n;
                    continue;
                }
                Err(_) => return,
            };
            let state = match event.what {
                CircuitBreakerEvent::Opened { .. } => State::Open,
                CircuitBreakerEvent::HalfOpened => State::HalfOpen,
                CircuitBreakerEvent::Closed => State::Closed,
                _ => continue,
            };
            self.lock().turns[service as usize].push(Turn { at: event.at - self.start, state });
        }
    }
}

/// A call in flight.
pub struct Recording<'a> {
    record: &'a Record,
    service: Service,
    attempt: u32,
    at: Duration,
    ok: bool,
}

impl Recording<'_> {
    pub fn end(mut self, ok: bool) {
        self.ok = ok;
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let took = self.record.now() - self.at;
        let call = Call { at: self.at, took, attempt: self.attempt, ok: self.ok };
        self.record.lock().calls[self.service as usize].push(call);
    }
}

impl Inner {
    /// Returns the periods in which the service's breaker was open or half-open, up to `end`.
    pub fn away(&self, service: Service, end: Duration) -> Vec<(Duration, Duration)> {
        let mut pieces = Vec::new();
        let mut since = None;
        for turn in &self.turns[service as usize] {
            match (turn.state, since) {
                (State::Closed, Some(from)) => {
                    pieces.push((from, turn.at));
                    since = None;
                }
                (State::Closed, None) | (_, Some(_)) => {}
                (_, None) => since = Some(turn.at),
            }
        }
        pieces.extend(since.map(|from| (from, end)));
        pieces
    }

    /// Returns the number of openings, and the total open time without half-open periods.
    pub fn openings(&self, service: Service, end: Duration) -> (usize, Duration) {
        let turns = &self.turns[service as usize];
        let ends = turns.iter().skip(1).map(|t| t.at).chain([end]);
        let open: Vec<Duration> = turns
            .iter()
            .zip(ends)
            .filter(|(t, _)| t.state == State::Open)
            .map(|(t, end)| end.saturating_sub(t.at))
            .collect();
        (open.len(), open.iter().sum())
    }
}
