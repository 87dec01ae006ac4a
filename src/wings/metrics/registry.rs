//! Who is watched, and where the numbers go.
use std::{collections::BTreeSet, fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

use super::{CallMeter, NAMES, Of};
use crate::{
    config::{ConfigError, Name},
    race::{First, race},
    sync::Mutex,
    time::Clock,
};

/// Watches policies, and keeps their numbers in a recorder of the `metrics` facade. A clone is the same.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    to: Recorders,
    clock: Clock,
    watched: Mutex<Watched>,
}

#[derive(Default)]
struct Watched {
    names: BTreeSet<(&'static str, Name)>,
    samples: Vec<Sample>,
}

/// Reads what is to be read of one policy into its gauges, and the counters that it keeps itself.
pub type Sample = Box<dyn Fn() + Send + Sync>;

/// Something whose numbers can be watched: every policy of this crate that has any, and yours.
pub trait Measured {
    /// Which sort of thing it is, as a word. Names must differ within a sort.
    const SORT: &'static str;

    /// Registers its numbers, and gives what reads them. It keeps a clone of what it reads.
    fn measure(&self, scope: &Scope) -> Sample;
}

#[derive(Clone)]
enum Recorders {
    Global,
    Own(Arc<dyn Recorder + Send + Sync>),
}

impl Recorders {
    fn with<T>(&self, f: impl FnOnce(&dyn Recorder) -> T) -> T {
        match self {
            Self::Global => ::metrics::with_recorder(f),
            Self::Own(own) => f(own),
        }
    }
}

/// The numbers of one thing that is watched: each has its name as the label `name`.
#[derive(Clone)]
pub struct Scope {
    to: Recorders,
    name: Name,
    clock: Clock,
}

const METADATA: Metadata<'static> = Metadata::new("steadfast", Level::INFO, Some("steadfast"));

impl Scope {
    /// The counter of this name with these labels.
    pub fn counter(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.to.with(|recorder| recorder.register_counter(&self.key(metric, labels), &METADATA))
    }

    /// The gauge of this name with these labels.
    pub fn gauge(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.to.with(|recorder| recorder.register_gauge(&self.key(metric, labels), &METADATA))
    }

    /// The histogram of this name with these labels.
    pub fn histogram(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.to.with(|recorder| recorder.register_histogram(&self.key(metric, labels), &METADATA))
    }

    /// The clock of the [`Metrics`].
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A counter for each of these words, under this label.
    pub(super) fn words(&self, metric: &'static str, label: &'static str, words: &[&'static str]) -> Words {
        let each = words.iter().map(|word| (*word, self.counter(metric, &[(label, word)]))).collect();
        Words { scope: self.clone(), metric, label, each }
    }

    fn key(&self, metric: &'static str, labels: &[(&'static str, &str)]) -> Key {
        let name = Label::new("name", SharedString::from_owned(self.name.as_str().to_owned()));
        let others = labels.iter().map(|(key, value)| Label::new(*key, SharedString::from_owned((*value).to_owned())));
        Key::from_parts(metric, std::iter::once(name).chain(others).collect::<Vec<_>>())
    }
}

/// Counters that differ in one label. Those whose words are known beforehand read 0 from the start, and cost no look-up.
pub(super) struct Words {
    scope: Scope,
    metric: &'static str,
    label: &'static str,
    each: Vec<(&'static str, Counter)>,
}

impl Words {
    pub(super) fn count(&self, word: &str) {
        match self.each.iter().find(|(known, _)| *known == word) {
            Some((_, counter)) => counter.increment(1),
            None => self.scope.counter(self.metric, &[(self.label, word)]).increment(1),
        }
    }
}

impl Metrics {
    /// Numbers for the recorder that is installed for the whole process, when something is first watched. Install it before.
    pub fn new() -> Self {
        Self::make(Recorders::Global, Clock::tokio())
    }

    /// Numbers for this recorder, whichever is installed.
    pub fn on(recorder: impl Recorder + Send + Sync + 'static) -> Self {
        Self::make(Recorders::Own(Arc::new(recorder)), Clock::tokio())
    }

    /// New ones for the same recorder, on another clock: what calls are timed by, and that of the budgets that are watched.
    #[must_use]
    pub fn with_clock(self, clock: &Clock) -> Self {
        Self::make(self.0.to.clone(), clock.clone())
    }

    fn make(to: Recorders, clock: Clock) -> Self {
        to.with(|recorder| {
            for series in NAMES {
                let (name, text) = (series.name.into(), series.text.into());
                match series.of {
                    Of::Counter => recorder.describe_counter(name, series.unit, text),
                    Of::Gauge => recorder.describe_gauge(name, series.unit, text),
                    Of::Histogram => recorder.describe_histogram(name, series.unit, text),
                }
            }
        });
        Self(Arc::new(Inner { to, clock, watched: Mutex::default() }))
    }

    /// Watches `what` under this name from now on: its events are counted, and its state is read at each [`record`](Self::record). A clone of
    /// it is kept for that.
    ///
    /// # Errors
    /// Where the name is taken by another of its sort: their gauges would overwrite each other.
    pub fn watch<M: Measured>(&self, name: impl Into<Name>, what: &M) -> Result<(), ConfigError> {
        let name = name.into();
        let mut watched = self.0.watched.lock();
        if !watched.names.insert((M::SORT, name.clone())) {
            return Err(ConfigError::new("name", format!("is that of another {}: {name}", M::SORT)));
        }
        let sample = what.measure(&self.scope(name));
        sample();
        watched.samples.push(sample);
        Ok(())
    }

    /// A policy that counts and times the calls through it, under this name. Outermost it tells what callers see, innermost what the
    /// other side does. Meters of one name add up.
    pub fn calls(&self, name: impl Into<Name>) -> CallMeter {
        CallMeter::new(&self.scope(name.into()))
    }

    /// Reads the state of all that is watched. What a policy counts by events is up to date without this.
    pub fn record(&self) {
        self.scrape(|| ());
    }

    /// As [`record`](Self::record), and renders before anybody records anew: so each breaker has exactly one state that reads 1 in what is
    /// rendered.
    pub fn scrape<T>(&self, render: impl FnOnce() -> T) -> T {
        let watched = self.0.watched.lock();
        watched.samples.iter().for_each(|sample| sample());
        render()
    }

    /// Records as often as this until `shutdown` is ready, and then once more: for exporters that push.
    ///
    /// # Cancel safety
    /// Dropped, it stops to record.
    pub async fn run(&self, every: Duration, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        loop {
            self.record();
            if let First::One(()) = race(shutdown.as_mut(), self.0.clock.sleep(every)).await {
                return self.record();
            }
        }
    }

    fn scope(&self, name: Name) -> Scope {
        Scope { to: self.0.to.clone(), name, clock: self.0.clock.clone() }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").field("watched", &self.0.watched.lock().names).finish_non_exhaustive()
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("name", &self.name).finish_non_exhaustive()
    }
}
