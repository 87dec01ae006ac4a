//! The watched policies and the recorder.
use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

use super::{CallMeter, MetricKind, series};
use crate::{
    build::{Builder, Common, Component},
    config::{ConfigError, Name},
    race::{First, race},
    sync::Mutex,
    time::Clock,
};

/// Watches policies and registers their metrics with a recorder of the `metrics` facade. Clones
/// share their state.
#[derive(Clone)]
pub struct Metrics(Arc<Registry>);

struct Registry {
    recorder: RecorderHandle,
    clock: Clock,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    names: Vec<TakenName>,
    samples: Vec<Sample>,
}

/// A function that copies the state of one policy into its gauges and counters.
pub type Sample = Box<dyn Fn() + Send + Sync>;

/// A component whose metrics can be watched: each policy of this crate that has any, or your own.
pub trait Measured {
    /// The kind of component, as a word. Names must differ within a kind.
    const KIND: &'static str;

    /// Kinds of the parts that are measured under names of their own, and what follows the
    /// component's name and a dot in these. A `*` stands for any text, where such names are not
    /// known yet. These names are taken, too. None by default.
    const PARTS: &'static [(&'static str, &'static str)] = &[];

    /// Registers the component's metrics and returns the function that reads its state. That
    /// function keeps a clone of the component.
    fn measure(&self, scope: &Scope) -> Sample;
}

/// The name of a watched component or of one of its parts; with an end, all names that begin with
/// `start` and end with it.
#[derive(Debug)]
struct TakenName {
    kind: &'static str,
    start: String,
    end: Option<&'static str>,
}

impl TakenName {
    fn of_part(component: &Name, kind: &'static str, part: &'static str) -> Self {
        let (start, end) = part.split_once('*').map_or((part, None), |(start, end)| (start, Some(end)));
        Self { kind, start: format!("{component}.{start}"), end }
    }

    /// Returns `true` if a component may have both names.
    fn meets(&self, other: &Self) -> bool {
        let (start, other_start) = (self.start.as_str(), other.start.as_str());
        let is_within = |name: &str, start: &str, end: &str| {
            name.strip_prefix(start).is_some_and(|rest| rest.len() > end.len() && rest.ends_with(end))
        };
        self.kind == other.kind
            && match (self.end, other.end) {
                (None, None) => start == other_start,
                (None, Some(end)) => is_within(start, other_start, end),
                (Some(end), None) => is_within(other_start, start, end),
                (Some(end), Some(other_end)) => {
                    (start.starts_with(other_start) || other_start.starts_with(start))
                        && (end.ends_with(other_end) || other_end.ends_with(end))
                }
            }
    }
}

impl fmt::Display for TakenName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, start, end } = self;
        write!(f, "{kind}: {start}")?;
        end.map_or(Ok(()), |end| write!(f, "*{end}"))
    }
}

#[derive(Clone)]
pub enum RecorderHandle {
    Global,
    Own(Arc<dyn Recorder + Send + Sync>),
}

impl RecorderHandle {
    fn with<T>(&self, f: impl FnOnce(&dyn Recorder) -> T) -> T {
        match self {
            Self::Global => ::metrics::with_recorder(f),
            Self::Own(own) => f(own),
        }
    }
}

/// Registers the metrics of one watched component; each metric gets the label `name`.
#[derive(Clone)]
pub struct Scope {
    recorder: RecorderHandle,
    name: Name,
    clock: Clock,
}

const METADATA: Metadata<'static> = Metadata::new("steadfast", Level::INFO, Some("steadfast"));

impl Scope {
    /// Registers a counter with this name and these labels, and returns it.
    pub fn counter(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.with(|recorder| recorder.register_counter(&self.key(metric, labels), &METADATA))
    }

    /// Registers a gauge with this name and these labels, and returns it.
    pub fn gauge(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.with(|recorder| recorder.register_gauge(&self.key(metric, labels), &METADATA))
    }

    /// Registers a histogram with this name and these labels, and returns it.
    pub fn histogram(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.recorder.with(|recorder| recorder.register_histogram(&self.key(metric, labels), &METADATA))
    }

    /// Returns the scope of a part of the component, whose name follows that of the component and a
    /// dot.
    pub fn part(&self, part: &str) -> Self {
        Self { name: Name::from(format!("{}.{part}", self.name)), ..self.clone() }
    }

    /// Returns the clock of the [`Metrics`].
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns a counter for each of these values of `label`, in their order.
    pub(super) fn counters<const N: usize>(
        &self,
        metric: &'static str,
        label: &'static str,
        values: [&'static str; N],
    ) -> [Counter; N] {
        values.map(|value| self.counter(metric, &[(label, value)]))
    }

    /// Returns counters by the value of `label`; those of `known` values read 0 from the start.
    pub(super) fn by_label(
        &self,
        metric: &'static str,
        label: &'static str,
        known: &[&'static str],
    ) -> LabelledCounters {
        let known = known.iter().map(|value| (*value, self.counter(metric, &[(label, value)]))).collect();
        LabelledCounters { scope: self.clone(), metric, label, known }
    }

    fn key(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let name = Label::new("name", SharedString::from_owned(self.name.as_str().to_owned()));
        let others = labels.iter().map(|(key, value)| Label::new(*key, SharedString::from_owned((*value).to_owned())));
        Key::from_parts(metric, std::iter::once(name).chain(others).collect::<Vec<_>>())
    }
}

/// Counters that differ in the value of one label. Those of known values read 0 from the start, and
/// need no look-up in the recorder.
pub(super) struct LabelledCounters {
    scope: Scope,
    metric: &'static str,
    label: &'static str,
    known: Vec<(&'static str, Counter)>,
}

impl LabelledCounters {
    pub(super) fn increment(&self, value: &str) {
        match self.known.iter().find(|(known, _)| *known == value) {
            Some((_, counter)) => counter.increment(1),
            None => self.scope.counter(self.metric, &[(self.label, value)]).increment(1),
        }
    }
}

impl Builder<Metrics> {
    /// Sets the recorder, whether or not one is installed for the process.
    pub fn recorder(mut self, recorder: impl Recorder + Send + Sync + 'static) -> Self {
        self.spec = RecorderHandle::Own(Arc::new(recorder));
        self
    }
}

impl Component for Metrics {
    type Built = Self;
    type Spec = RecorderHandle;

    fn assemble(handle: RecorderHandle, Common { clock, .. }: Common) -> Self {
        handle.with(|recorder| {
            for series in series() {
                let (name, text) = (series.name.into(), series.description.into());
                match series.kind {
                    MetricKind::Counter => recorder.describe_counter(name, series.unit, text),
                    MetricKind::Gauge => recorder.describe_gauge(name, series.unit, text),
                    MetricKind::Histogram => recorder.describe_histogram(name, series.unit, text),
                }
            }
        });
        Self(Arc::new(Registry { recorder: handle, clock, watched: Mutex::default() }))
    }
}

impl Metrics {
    /// Creates metrics on the recorder that is installed for the process. Install it before the
    /// first call of [`watch`](Self::watch).
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Creates metrics on the given recorder, whether or not one is installed for the process.
    pub fn on(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self::builder().recorder(recorder).build()
    }

    /// Creates a builder. Its clock times calls, and must be that of the watched retry budgets.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CMetrics%3E): `recorder`.
    pub fn builder() -> Builder<Self> {
        Builder::new(RecorderHandle::Global)
    }

    /// Watches `component` under this name from now on: counts its events, and reads its state at
    /// each [`record`](Self::record). Keeps a clone of it.
    ///
    /// # Errors
    /// If another component of the same kind has the name, or may get it, as a stack of a registry
    /// does: their gauges would overwrite each other.
    pub fn watch<M: Measured>(&self, name: impl Into<Name>, component: &M) -> Result<(), ConfigError> {
        let name = name.into();
        let mut watched = self.0.watched.lock();
        let whole = TakenName { kind: M::KIND, start: name.as_str().to_owned(), end: None };
        let parts = M::PARTS.iter().map(|(kind, part)| TakenName::of_part(&name, kind, part));
        let names: Vec<_> = std::iter::once(whole).chain(parts).collect();
        if let Some(name) = names.iter().find(|name| watched.names.iter().any(|taken| taken.meets(name))) {
            return Err(ConfigError::new("name", format!("is taken by another {name}")));
        }
        watched.names.extend(names);
        let sample = component.measure(&self.scope(name));
        sample();
        watched.samples.push(sample);
        Ok(())
    }

    /// Returns a policy that counts and times the calls through it, under this name. Outermost in a
    /// pipeline it measures what callers see, innermost what the other side does. Meters with the
    /// same name share their metrics.
    pub fn calls(&self, name: impl Into<Name>) -> CallMeter {
        CallMeter::new(&self.scope(name.into()))
    }

    /// Reads the state of all watched components. Counters of events are up to date without this.
    pub fn record(&self) {
        self.scrape(|| ());
    }

    /// Reads the state as [`record`](Self::record) does, and renders before another task can
    /// record: in the rendered text exactly one state of each breaker reads 1.
    pub fn scrape<T>(&self, render: impl FnOnce() -> T) -> T {
        let watched = self.0.watched.lock();
        watched.samples.iter().for_each(|sample| sample());
        render()
    }

    /// Records once per `interval` until `shutdown` is ready, and then once more: for exporters
    /// that push.
    ///
    /// # Cancel safety
    /// Dropping the future stops the recording.
    pub async fn run(&self, interval: Duration, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            self.record();
            if let First::One(()) = race(shutdown.as_mut(), self.0.clock.sleep(interval)).await {
                return self.record();
            }
        }
    }

    fn scope(&self, name: Name) -> Scope {
        Scope { recorder: self.0.recorder.clone(), name, clock: self.0.clock.clone() }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

crate::build::debug_fields!(Metrics, |this| watched: this.0.watched.lock().names);

crate::build::debug_fields!(Scope, |this| name: this.name);
