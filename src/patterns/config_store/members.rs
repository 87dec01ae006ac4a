//! The processes that read a configuration: what each reports of itself.
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::{
    config::Name,
    port::{AskError, Capability},
    presence::{Presence, RENEW_EVERY},
    race::race,
    revisions::Revisions,
    store::{Store, StoreError},
    time::{Clock, Instant},
    wire::{In, Out},
};

/// Interval at which a process looks for something new to report, such as its health.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Number of the stored form.
const FORM: u64 = 1;

/// The report of a process that reads a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberReport {
    /// Name of the process.
    pub member: String,
    /// Number that it runs.
    pub number: u64,
    /// Number that it does not take.
    pub rejected: Option<u64>,
    /// `true` while the number that it runs is on trial.
    pub is_on_trial: bool,
    /// `true` if its health check says so, or it has none.
    pub is_fit: bool,
    /// Random number of its life: another one after a restart.
    pub life: u64,
}

impl MemberReport {
    fn encode(&self) -> Bytes {
        let mut out = Out::of_form(FORM);
        out.number(self.number);
        out.option(self.rejected, Out::number);
        out.number(u64::from(self.is_on_trial));
        out.number(u64::from(self.is_fit));
        out.number(self.life);
        out.into_bytes()
    }

    fn decode(member: String, bytes: Bytes) -> Option<Self> {
        let mut input = In::new(bytes);
        let (form, number, rejected) = (input.number()?, input.number()?, input.option(In::number)?);
        let (is_on_trial, is_fit) = (input.number()? == 1, input.number()? == 1);
        let life = input.number()?;
        (form == FORM).then_some(Self { member, number, rejected, is_on_trial, is_fit, life })
    }
}

/// This process among those that read the configuration.
pub(super) struct Member {
    name: Option<String>,
    presence: Option<Presence>,
    is_fit: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    clock: Clock,
    changed: Notify,
    pub(super) life: u64,
}

impl Member {
    pub(super) fn new(
        store: &Arc<dyn Store>,
        (clock, limit): (&Clock, Duration),
        configuration: &Name,
        name: Option<String>,
        is_fit: Option<Box<dyn Fn() -> bool + Send + Sync>>,
        life: u64,
    ) -> Self {
        let presence = name.as_ref().and_then(|name| presence(store, (clock, limit), configuration, name));
        Self { name, presence, is_fit, clock: clock.clone(), changed: Notify::new(), life }
    }

    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(super) fn longest_key(&self) -> usize {
        self.presence.as_ref().map_or(0, Presence::longest_key)
    }

    pub(super) fn is_fit(&self) -> bool {
        self.is_fit.as_ref().is_none_or(|is_fit| is_fit())
    }

    /// Says that there is something new to report.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Reports at once, at each change, and from time to time.
    pub(super) async fn keep_reporting(&self, report: impl Fn(String) -> MemberReport) {
        let (Some(presence), Some(name)) = (&self.presence, &self.name) else { return std::future::pending().await };
        let mut told: Option<(Bytes, Instant)> = None;
        loop {
            let now = self.clock.now();
            let report = report(name.clone()).encode();
            let is_told = |(same, at): &(Bytes, Instant)| *same == report && now - *at < RENEW_EVERY;
            // A row that is not renewed expires: then the process is not counted.
            if !told.as_ref().is_some_and(is_told) {
                told = presence.report(report.clone()).await.ok().map(|()| (report, now));
            }
            race(self.changed.notified(), self.clock.sleep(LOOK_EVERY)).await;
        }
    }

    pub(super) async fn leave(&self) {
        if let Some(presence) = &self.presence {
            let _ = presence.leave().await;
        }
    }
}

/// Returns the rows of the processes, if the store has times to live.
pub(super) fn presence(
    store: &Arc<dyn Store>,
    (clock, limit): (&Clock, Duration),
    configuration: &Name,
    member: &str,
) -> Option<Presence> {
    store.capabilities().has(Capability::TimeToLive).then(|| {
        let partition = format!("config-members {configuration}");
        Presence::new(store.clone(), clock.clone(), limit, (partition, member))
    })
}

/// Reads the reports of all processes; `None` if there are too many.
pub(super) async fn reports(presence: &Presence) -> Result<Option<Vec<MemberReport>>, AskError<StoreError>> {
    let Some(fleet) = presence.list().await? else { return Ok(None) };
    let reports = fleet.reports.into_iter();
    Ok(Some(reports.filter_map(|(member, bytes)| MemberReport::decode(member, bytes)).collect()))
}

/// Returns the revisions of a configuration.
pub(super) fn revisions(store: Arc<dyn Store>, clock: &Clock, limit: Duration, name: &Name) -> Revisions {
    Revisions::new(store, clock.clone(), limit, format!("config {name}"))
}

/// Returns the topic of the notices of a configuration.
pub(super) fn topic(name: &Name) -> String {
    format!("steadfast/config/{name}")
}
