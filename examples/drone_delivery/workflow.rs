//! The five steps of a request: work waits while a service is unavailable, and is not lost.
use std::{net::SocketAddr, sync::Arc, time::Duration};

use hyper::{Method, StatusCode, body::Bytes};
use serde_json::json;
use steadfast::{
    CallError, Cause,
    cache_aside::{CacheAside, LoadError},
    call::{AttemptInfo, WithAttempt, idempotent},
    entropy::Entropy,
    throttling::RateLimiter,
    time::{Clock, Instant},
};

use tokio::sync::oneshot;

use crate::{
    client::{Client, HttpError},
    dispatch::Dispatch,
    ledger::{Entry, Ledger, State, Unwritten},
    pipelines::Protection,
    record::{Done, End, Record},
    request::Request,
    services::Service,
};

/// A request in progress.
pub struct Job {
    pub request: Request,
    /// Index in the input, and the ledger's record.
    place: usize,
    entry: Entry,
    /// First unfinished step.
    step: usize,
    /// Result, once known.
    end: Option<End>,
    /// Time since which the ledger has refused the entry.
    unwritten: Option<Instant>,
    /// Start of the work.
    began: Option<Instant>,
    /// Receiver of its end: the handler of its message.
    ended: Option<oneshot::Sender<()>>,
}

impl Job {
    /// Creates a job from the step at which an earlier run stopped.
    pub fn new(place: usize, request: Request, entry: Entry) -> Self {
        let step = match entry.state {
            State::Received { step } | State::Lost { step, .. } => step,
            _ => 0,
        };
        let mut job = Self { request, place, entry, step, end: None, unwritten: None, began: None, ended: None };
        job.go_to(step);
        job
    }

    /// Returns the state to write to the ledger.
    fn state(&self) -> State {
        match &self.end {
            None => State::Received { step: self.step },
            Some(End::Scheduled) => State::Scheduled,
            Some(End::Rejected) => State::Rejected,
            Some(End::Lost(why)) => State::Lost { step: self.step, why: why.clone() },
        }
    }

    /// Continues with this step, or the next needed one; without one the request is done.
    fn go_to(&mut self, step: usize) {
        self.step = step;
        if Service::ALL.get(step) == Some(&Service::Transport) && !self.request.needs_transport() {
            self.step += 1;
        }
        if self.step >= Service::ALL.len() {
            self.end = Some(End::Scheduled);
        }
    }

    /// Creates a job and the receiver of its end.
    pub fn watched(mut self) -> (Self, oneshot::Receiver<()>) {
        let (ended, news) = oneshot::channel();
        self.ended = Some(ended);
        (self, news)
    }
}

/// State shared by the workers.
pub struct Workflow {
    pub clock: Clock,
    pub ledger: Ledger,
    pub client: Client,
    pub addresses: [SocketAddr; 5],
    pub protections: Arc<[Protection]>,
    /// Cache of owners' permissions; `None` without protection.
    pub accounts: Option<CacheAside<String, bool>>,
    pub dispatch: Dispatch<Job>,
    pub record: Arc<Record>,
    pub starts: Option<RateLimiter>,
    pub entropy: Entropy,
    /// Time for which a request may be deferred; `None` if requests are not deferred.
    pub patience: Option<Duration>,
    /// Time for which a record's shard may be unavailable.
    pub shard_patience: Duration,
    pub progress: indicatif::ProgressBar,
}

/// Result of working on a job.
enum Went {
    Ended(End),
    /// The service or the record's shard is unavailable: retry after this time.
    Again(Duration),
}

impl Workflow {
    /// Runs one worker until all jobs are done, or the ledger fails.
    pub async fn work(self: Arc<Self>) -> Result<(), String> {
        while let Some(mut job) = self.dispatch.next().await {
            let began = match job.began {
                Some(began) => began,
                None => {
                    if let Some(starts) = &self.starts {
                        tokio::select! {
                            () = self.dispatch.stopped() => {
                                self.dispatch.done(); // it was not begun
                                continue;
                            }
                            () = starts.acquire() => {}
                        }
                    }
                    *job.began.insert(self.clock.now())
                }
            };
            match self.clone().advance(&mut job, began).await? {
                Went::Ended(end) => {
                    let (at, took) = (self.record.now(), self.clock.now() - began);
                    let done = Done::new(job.request, at, took, end);
                    self.record.lock().done.push(done);
                    self.progress.inc(1);
                    self.dispatch.done();
                    if let Some(ended) = job.ended.take() {
                        // The receiver may have been dropped.
                        let _ = ended.send(());
                    }
                }
                Went::Again(wait) => {
                    self.record.lock().put_back += 1;
                    self.progress.set_message(format!("{} put back", self.dispatch.parked() + 1));
                    let owner = job.request.owner.clone();
                    self.dispatch.put_back(&owner, job, self.clock.now() + wait);
                }
            }
        }
        Ok(())
    }

    async fn advance(self: Arc<Self>, job: &mut Job, began: Instant) -> Result<Went, String> {
        loop {
            // A finished step is written to the ledger first.
            if let Some(wait) = self.enter(job).await? {
                return Ok(Went::Again(wait));
            }
            if let Some(end) = job.end.take() {
                return Ok(Went::Ended(end));
            }
            let service = Service::ALL[job.step];
            let before = self.clock.now();
            let called = match service {
                Service::Account => self.account(&job.request.owner).await,
                _ => self.call(service, &job.request).await.map(|_| true).map_err(Arc::new),
            };
            match called {
                Ok(false) => job.end = Some(End::Rejected),
                Ok(true) => {
                    if service == Service::Account {
                        self.record.approved(&job.request.owner);
                    }
                    self.record.step(service, self.clock.now() - before);
                    job.go_to(job.step + 1);
                }
                Err(error) => match self.failed(service, &error, began) {
                    Went::Ended(end) => job.end = Some(end),
                    again @ Went::Again(_) => return Ok(again),
                },
            }
        }
    }

    /// Writes the state to the ledger; returns the wait if the record's shard is unavailable. No request is lost by
    /// that: after the patience the run ends, and the next run continues.
    async fn enter(&self, job: &mut Job) -> Result<Option<Duration>, String> {
        let state = job.state();
        if state == job.entry.state {
            return Ok(None);
        }
        match self.ledger.advance(job.place, &mut job.entry, &state).await {
            Ok(()) => {
                job.unwritten = None;
                Ok(None)
            }
            Err(Unwritten::Failed(why)) => Err(why),
            Err(Unwritten::Away { wait, why }) => {
                let now = self.clock.now();
                if now - *job.unwritten.get_or_insert(now) >= self.shard_patience {
                    return Err(why);
                }
                Ok(Some(self.spread(wait)))
            }
        }
    }

    /// Returns a random wait of at least this time, so that deferred requests do not return together.
    fn spread(&self, wait: Duration) -> Duration {
        let wait = wait.max(Duration::from_millis(50));
        wait + wait.mul_f64(self.entropy.unit() / 2.0)
    }

    /// Defers a request after a failed step, unless the error is permanent or the patience is over.
    fn failed(&self, service: Service, error: &CallError<HttpError>, began: Instant) -> Went {
        let hopeless = matches!(error.cause(), Cause::Operation(error) if error.is_final());
        match self.patience {
            Some(patience) if !hopeless && self.clock.now() - began < patience => {
                Went::Again(self.spread(error.retry_after().unwrap_or_default()))
            }
            _ => Went::Ended(End::Lost(format!("{service}: {error}"))),
        }
    }

    /// Returns `true` if the owner may schedule deliveries: from the cache, or by one call of the account service for
    /// all waiting workers.
    async fn account(self: &Arc<Self>, owner: &str) -> Result<bool, Arc<CallError<HttpError>>> {
        let load = || {
            let (workflow, path) = (self.clone(), format!("/accounts/{owner}"));
            async move {
                let answer = workflow.send(Service::Account, &Method::GET, &path, None, &Bytes::new()).await;
                answer.map(|status| status != StatusCode::FORBIDDEN)
            }
        };
        let Some(accounts) = &self.accounts else { return load().await.map_err(Arc::new) };
        loop {
            match accounts.get_or_load(owner, load).await {
                Ok(may) => return Ok(may),
                Err(LoadError::Failed(error)) => return Err(error),
                // The cache has no time-out of its own here, and a worker that panics ends the run.
                Err(_) => {}
            }
        }
    }

    /// Performs one step: one call through the service's pipeline.
    async fn call(&self, service: Service, request: &Request) -> Result<StatusCode, CallError<HttpError>> {
        let id = request.id.to_string();
        let (method, path, key, body) = match service {
            Service::Account => (Method::GET, format!("/accounts/{}", request.owner), None, Bytes::new()),
            Service::Package => {
                (Method::PUT, format!("/packages/{}", request.package.id), None, json(&request.package))
            }
            Service::Transport => {
                let body = json!({ "from": request.pickup.city, "to": request.dropoff.city });
                (Method::PUT, format!("/transports/{id}"), None, json(&body))
            }
            Service::Drone => {
                let body = json!({
                    "deliveryId": id, "size": request.package.size, "weight": request.package.weight,
                    "from": request.pickup, "to": request.dropoff, "expedited": request.expedited,
                });
                (Method::POST, "/drones".to_owned(), Some(&*id), json(&body))
            }
            Service::Delivery => {
                let body = json!({
                    "ownerId": request.owner, "packageId": request.package.id,
                    "deadline": request.deadline.to_string(), "confirmation": request.confirmation,
                });
                (Method::PUT, format!("/deliveries/{id}"), None, json(&body))
            }
        };
        self.send(service, &method, &path, key, &body).await
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

fn json(document: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(document).map(Bytes::from).unwrap_or_default()
}
