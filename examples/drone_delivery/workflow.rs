//! One request through its five steps: the work waits where a service is away, and is not lost.
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

/// A request on its way: it goes on where it stopped.
pub struct Job {
    pub request: Request,
    /// Its place in the input, and what the ledger has of it.
    place: usize,
    entry: Entry,
    /// The first step that is not done.
    step: usize,
    /// What became of it, when that is known.
    end: Option<End>,
    /// Since when its ledger has not taken what is to be entered.
    unwritten: Option<Instant>,
    /// When work on it began.
    began: Option<Instant>,
    /// Who waits for its end: its message in the queue.
    ended: Option<oneshot::Sender<()>>,
}

impl Job {
    /// A request to work on, from the step where an earlier run left it.
    pub fn new(place: usize, request: Request, entry: Entry) -> Self {
        let step = match entry.state {
            State::Received { step } | State::Lost { step, .. } => step,
            _ => 0,
        };
        let mut job = Self { request, place, entry, step, end: None, unwritten: None, began: None, ended: None };
        job.go_to(step);
        job
    }

    /// What the ledger is to say of it.
    fn state(&self) -> State {
        match &self.end {
            None => State::Received { step: self.step },
            Some(End::Scheduled) => State::Scheduled,
            Some(End::Rejected) => State::Rejected,
            Some(End::Lost(why)) => State::Lost { step: self.step, why: why.clone() },
        }
    }

    /// Goes on with this step, or the one after, where it is not needed. Where there is none, all is done.
    fn go_to(&mut self, step: usize) {
        self.step = step;
        if Service::ALL.get(step) == Some(&Service::Transport) && !self.request.needs_transport() {
            self.step += 1;
        }
        if self.step >= Service::ALL.len() {
            self.end = Some(End::Scheduled);
        }
    }

    /// The same, and the news of its end.
    pub fn watched(mut self) -> (Self, oneshot::Receiver<()>) {
        let (ended, news) = oneshot::channel();
        self.ended = Some(ended);
        (self, news)
    }
}

/// All that the workers share.
pub struct Workflow {
    pub clock: Clock,
    pub ledger: Ledger,
    pub client: Client,
    pub addresses: [SocketAddr; 5],
    pub protections: Arc<[Protection]>,
    /// Whether an owner may have deliveries scheduled. Nothing is cached where calls are bare.
    pub accounts: Option<CacheAside<String, bool>>,
    pub dispatch: Dispatch<Job>,
    pub record: Arc<Record>,
    pub starts: Option<RateLimiter>,
    pub entropy: Entropy,
    /// How long a request may be put back; `None` where nothing is.
    pub patience: Option<Duration>,
    /// How long a record's shard may be away.
    pub shard_patience: Duration,
    pub progress: indicatif::ProgressBar,
}

/// What came of working on a job.
enum Went {
    Ended(End),
    /// The service is away, or the record's shard: again after this long.
    Again(Duration),
}

impl Workflow {
    /// One worker: takes jobs until all are done, or the ledger fails.
    pub async fn work(self: Arc<Self>) -> Result<(), String> {
        while let Some(mut job) = self.dispatch.next().await {
            let began = match job.began {
                Some(began) => began,
                None => {
                    if let Some(starts) = &self.starts {
                        starts.acquire().await;
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
                        // Nobody who waits is no reason to stop.
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
            // What is done is in the ledger before anything else is.
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

    /// Enters what the ledger does not say yet; gives how long to wait where the record's shard is away. That is no reason to lose a
    /// request: after the patience the run ends, and the next one goes on.
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

    /// At least as long, so that what was put back together does not come back together.
    fn spread(&self, wait: Duration) -> Duration {
        let wait = wait.max(Duration::from_millis(50));
        wait + wait.mul_f64(self.entropy.unit() / 2.0)
    }

    /// A step failed for all that its pipeline could do: put back, unless that is pointless or the patience is over.
    fn failed(&self, service: Service, error: &CallError<HttpError>, began: Instant) -> Went {
        let hopeless = matches!(error.cause(), Cause::Operation(error) if error.is_final());
        match self.patience {
            Some(patience) if !hopeless && self.clock.now() - began < patience => {
                Went::Again(self.spread(error.retry_after().unwrap_or_default()))
            }
            _ => Went::Ended(End::Lost(format!("{service}: {error}"))),
        }
    }

    /// Whether the owner may have deliveries scheduled: from the cache, else from the account service, once for all who ask.
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

    /// One step: one call through the service's pipeline.
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
