//! A delivery is a saga over five services: scheduled as a whole, or not at all.
use std::{net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Method, StatusCode, body::Bytes};
use serde_json::json;
use steadfast::{
    CallError, ConfigError, FailureKind,
    backoff::BackoffConfig,
    cache_aside::{CacheAside, LoadError},
    call::{AttemptInfo, WithAttempt, idempotent},
    codec::Codec,
    entropy::Entropy,
    saga::{Action, Compensation, Plan, Saga, SagaConfig, SagaError, SagaOutcome, Step, StepOutcome, StepOutcomeKind},
    store::Store,
    throttling::RateLimiter,
    time::Clock,
};

use crate::{
    client::{Client, HttpError},
    dispatch::Dispatch,
    ledger::{Entry, Ledger, State, Unwritten},
    pipelines::Protection,
    record::{Done, End, Record},
    request::Request,
    services::Service,
};

/// Calls of the services, for the steps of all sagas.
pub struct Calls {
    pub clock: Clock,
    pub client: Client,
    pub addresses: [SocketAddr; 5],
    pub protections: Arc<[Protection]>,
    /// Cache of owners' permissions; `None` without protection.
    pub accounts: Option<CacheAside<String, bool>>,
    /// Turns of calls: a delivery that waits for a service has none.
    pub turns: Dispatch,
    pub record: Arc<Record>,
    pub entropy: Entropy,
}

/// Creates the saga of a delivery. Without `defers` a step that fails is not tried again.
pub fn deliveries(calls: &Arc<Calls>, store: Arc<dyn Store>, defers: bool) -> Result<Saga<Request>, ConfigError> {
    let call = |service| Call { service, calls: calls.clone() };
    let plan = Plan::new()
        // The account is checked while a drone and a transport are reserved. They are released if the owner is suspended.
        .parallel(|plan| {
            plan.step_without_compensation("account", call(Service::Account))
                .step("transport", call(Service::Transport))
                .step("drone", call(Service::Drone))
        })
        // A package stays: another delivery may name it, too.
        .step_without_compensation("package", call(Service::Package))
        .pivot("delivery", call(Service::Delivery));
    let config = SagaConfig::default()
        // The patience of a run limits the attempts.
        .max_attempts(if defers { u32::MAX } else { 1 })
        .retry(BackoffConfig::default().between(SOON, SOON * 10))
        .compensation_retry(BackoffConfig::default().between(SOON, SOON * 10))
        .max_compensation_attempts(u32::MAX);
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    Saga::builder("delivery", store, codec, plan, config).clock(&calls.clock).build()
}

/// Minimum delay before a repeated attempt.
const SOON: Duration = Duration::from_millis(50);

/// A step: one call of its service.
struct Call {
    service: Service,
    calls: Arc<Calls>,
}

impl Action<Request> for Call {
    async fn execute(&self, step: &Step<Request>) -> StepOutcome<Request> {
        if self.service == Service::Transport && !step.needs_transport() {
            return StepOutcome::completed();
        }
        let (calls, Some(_turn)) = (&self.calls, self.calls.turns.turn(&step.owner).await) else {
            return StepOutcome::not_sent("the run ends");
        };
        let before = calls.clock.now();
        let outcome = match self.service {
            Service::Account => calls.account(&step.owner).await,
            service => calls.outcome(step, calls.put(service, step).await),
        };
        if outcome.kind() == StepOutcomeKind::Completed {
            calls.record.step(self.service, calls.clock.now() - before);
        }
        outcome
    }
}

/// Of a reservation.
impl Compensation<Request> for Call {
    async fn compensate(&self, step: &Step<Request>) -> StepOutcome<Request> {
        if self.service == Service::Transport && !step.needs_transport() {
            return StepOutcome::completed();
        }
        let (calls, Some(_turn)) = (&self.calls, self.calls.turns.turn(&step.owner).await) else {
            return StepOutcome::not_sent("the run ends");
        };
        // With the key of the action: the service refuses the action if it arrives later.
        let path = format!("/{}s/{}", self.service, step.id);
        let released = calls.send(self.service, &Method::DELETE, &path, Some(step.action_key()), &Bytes::new()).await;
        calls.outcome(step, released)
    }
}

impl Calls {
    /// Returns the outcome of a call. A failed one is repeated when its service may be available again.
    fn outcome(&self, step: &Step<Request>, called: Result<StatusCode, CallError<HttpError>>) -> StepOutcome<Request> {
        let wait = called.as_ref().err().and_then(CallError::retry_after);
        let outcome = step.of_call(called, |_, _| ());
        if outcome.kind() == StepOutcomeKind::Completed { outcome } else { self.deferred(outcome, wait) }
    }

    /// Delays the next attempt by a random time of at least this, so that deferred deliveries do not return together.
    fn deferred(&self, outcome: StepOutcome<Request>, wait: Option<Duration>) -> StepOutcome<Request> {
        self.record.lock().put_back += 1;
        outcome.after(self.spread(wait.unwrap_or_default()))
    }

    fn spread(&self, wait: Duration) -> Duration {
        let wait = wait.max(SOON);
        wait + wait.mul_f64(self.entropy.unit() / 2.0)
    }

    /// Completes if the owner may schedule deliveries: from the cache, or by one call of the account service for all
    /// waiting deliveries. It has no effect, so a failed call is never unknown.
    async fn account(self: &Arc<Self>, owner: &str) -> StepOutcome<Request> {
        let load = || {
            let (calls, path) = (self.clone(), format!("/accounts/{owner}"));
            async move {
                let answer = calls.send(Service::Account, &Method::GET, &path, None, &Bytes::new()).await;
                answer.map(|status| status != StatusCode::FORBIDDEN)
            }
        };
        let may = match &self.accounts {
            None => load().await.map_err(Arc::new),
            Some(accounts) => loop {
                match accounts.get_or_load(owner, load).await {
                    Ok(may) => break Ok(may),
                    Err(LoadError::Failed(error)) => break Err(error),
                    // The cache has no time-out of its own here, and a load that panics ends the run.
                    Err(_) => {}
                }
            },
        };
        match may {
            Ok(true) => {
                self.record.approved(owner);
                StepOutcome::completed()
            }
            Ok(false) => StepOutcome::failed(SUSPENDED),
            Err(error) if error.verdict().kind() == Some(FailureKind::Client) => StepOutcome::failed(error),
            Err(error) => self.deferred(StepOutcome::not_sent(&error), error.retry_after()),
        }
    }

    /// Performs the action of a step: one call through the service's pipeline.
    async fn put(&self, service: Service, step: &Step<Request>) -> Result<StatusCode, CallError<HttpError>> {
        let id = step.id;
        let (method, path, body) = match service {
            Service::Account => (Method::GET, format!("/accounts/{}", step.owner), Bytes::new()),
            Service::Package => (Method::PUT, format!("/packages/{}", step.package.id), json(&step.package)),
            Service::Transport => {
                let body = json!({ "from": step.pickup.city, "to": step.dropoff.city });
                (Method::PUT, format!("/transports/{id}"), json(&body))
            }
            Service::Drone => {
                let body = json!({
                    "deliveryId": id, "size": step.package.size, "weight": step.package.weight,
                    "from": step.pickup, "to": step.dropoff, "expedited": step.expedited,
                });
                (Method::POST, "/drones".to_owned(), json(&body))
            }
            Service::Delivery => {
                let body = json!({
                    "ownerId": step.owner, "packageId": step.package.id,
                    "deadline": step.deadline.to_string(), "confirmation": step.confirmation,
                });
                (Method::PUT, format!("/deliveries/{id}"), json(&body))
            }
        };
        self.send(service, &method, &path, Some(step.key()), &body).await
    }

    async fn send(
        &self,
        service: Service,
        method: &Method,
        path: &str,
        key: Option<&str>,
        body: &Bytes,
    ) -> Result<StatusCode, CallError<HttpError>> {
        let address = self.addresses[service as usize];
        let attempt = |attempt: AttemptInfo| async move {
            let recording = self.record.call(service, attempt.number());
            let answer = self.client.call(method, address, path, key, body).await;
            recording.end(answer.is_ok());
            answer
        };
        self.protections[service as usize].pipeline.call(idempotent(WithAttempt(attempt))).await
    }
}

const SUSPENDED: &str = "the owner is suspended";

/// Schedules deliveries, and enters their ends in the ledger.
pub struct Workflow {
    pub calls: Arc<Calls>,
    pub sagas: Saga<Request>,
    pub ledger: Ledger,
    /// Turns of deliveries to begin: one at a time.
    pub gate: Dispatch,
    pub starts: Option<RateLimiter>,
    /// Time for which a delivery may be deferred; `None` if deliveries are not deferred.
    pub patience: Option<Duration>,
    /// Time for which a record's shard may be unavailable.
    pub shard_patience: Duration,
    pub progress: indicatif::ProgressBar,
}

impl Workflow {
    /// Schedules a delivery, and enters its end. Returns `false` if it was left to another run, because this one stops.
    ///
    /// # Errors
    /// If a store fails: nothing is lost, and another run continues.
    pub async fn schedule(&self, place: usize, request: Request, mut entry: Entry) -> Result<bool, String> {
        let clock = &self.calls.clock;
        let begins = async {
            let turn = self.gate.turn(&request.owner).await?;
            if let Some(starts) = &self.starts {
                tokio::select! {
                    () = self.gate.stopped() => return None,
                    () = starts.acquire() => {}
                }
            }
            // As many begin as can be worked on.
            let _one_call = self.calls.turns.turn(&request.owner).await?;
            drop(turn);
            Some(clock.now())
        };
        let Some(began) = begins.await else { return Ok(false) };
        // What is worked on when the run stops has the time of a call to end. Then it is dropped, which is like a kill:
        // the saga stays open.
        let stops = async {
            self.gate.stopped().await;
            clock.sleep(LAST).await;
        };
        let state = tokio::select! {
            state = self.deliver(&request, &entry) => state?,
            () = stops => return Ok(false),
        };
        if !self.enter(place, &mut entry, &state).await? {
            return Ok(false);
        }
        let end = match state {
            State::Scheduled => End::Scheduled,
            State::Rejected => End::Rejected,
            State::Lost { why, .. } => End::Lost(why),
            state => return Err(format!("a delivery ended {state:?}")),
        };
        let record = &self.calls.record;
        let done = Done::new(request, record.now(), clock.now() - began, end);
        record.lock().done.push(done);
        self.progress.inc(1);
        Ok(true)
    }

    /// Runs the saga of a delivery to its end, or as far as the patience of this run goes.
    async fn deliver(&self, request: &Request, entry: &Entry) -> Result<State, String> {
        let tries = if let State::Lost { tries, .. } = entry.state { tries } else { 0 };
        // A delivery that was compensated is tried again as a saga of its own.
        let id = if tries == 0 { request.id.to_string() } else { format!("{}.{tries}", request.id) };
        let run = async {
            if entry.is_old {
                // This run alone works on the store, so the executor of an earlier run is gone.
                match self.sagas.resume(&id).await {
                    Err(SagaError::NotFound) => {}
                    Ok(SagaOutcome::Stuck { .. }) => return self.sagas.retry(&id).await,
                    ended => return ended,
                }
            }
            self.sagas.run(&id, request.clone()).await
        };
        let patience = async {
            let Some(patience) = self.patience else { return std::future::pending().await };
            self.calls.clock.sleep(patience).await;
            loop {
                match self.sagas.cancel(&id, "not scheduled in time").await {
                    Err(SagaError::NotFound) => self.calls.clock.sleep(SOON).await, // its start is being written
                    // It only goes forward now, and has as much time again.
                    Err(SagaError::PastPivot) => break self.calls.clock.sleep(patience).await,
                    cancelled => return cancelled,
                }
            }
            Err(SagaError::PastPivot)
        };
        let ended = tokio::select! { ended = run => ended, cancelled = patience => cancelled };
        match ended {
            Ok(SagaOutcome::Completed(_)) => Ok(State::Scheduled),
            Ok(SagaOutcome::Compensated { reason, .. }) if reason == SUSPENDED => Ok(State::Rejected),
            Ok(SagaOutcome::Compensated { reason, .. }) => Ok(State::Lost { tries: tries + 1, why: reason }),
            // Another run goes on with this saga.
            Ok(SagaOutcome::Stuck { step, reason }) => Ok(State::Lost { tries, why: format!("{step}: {reason}") }),
            Err(error @ SagaError::PastPivot) => Ok(State::Lost { tries, why: error.to_string() }),
            Ok(_) => Err("a saga ended in an unknown way".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Enters the end in the ledger; waits while the record's shard is unavailable. No delivery is lost by that: after
    /// the patience the run ends, and the next run continues. Returns `false` if this run stops meanwhile.
    async fn enter(&self, place: usize, entry: &mut Entry, state: &State) -> Result<bool, String> {
        let clock = &self.calls.clock;
        let began = clock.now();
        loop {
            match self.ledger.advance(place, entry, state).await {
                Ok(()) => return Ok(true),
                Err(Unwritten::Failed(why)) => return Err(why),
                Err(Unwritten::Away { why, .. }) if clock.now() - began >= self.shard_patience => return Err(why),
                Err(Unwritten::Away { wait, .. }) => {
                    self.calls.record.lock().put_back += 1;
                    tokio::select! {
                        () = self.gate.stopped() => return Ok(false),
                        () = clock.sleep(self.calls.spread(wait)) => {}
                    }
                }
            }
        }
    }
}

/// Time for deliveries in progress when the run stops.
const LAST: Duration = Duration::from_secs(2);

fn json(document: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(document).map(Bytes::from).unwrap_or_default()
}
