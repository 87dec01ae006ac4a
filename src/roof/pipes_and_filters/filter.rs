//! A filter as its users hold it: its input, its outputs, and how results reach them.
use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{event::FilterEvent as Event, lineage};
use crate::{
    build::{Builder, Common, Component, HasEntropy, HasEvents},
    call::{Explanation, Layer},
    config::{ConfigError, Name, require},
    notify::Notifier,
    observe::{Events, Subscription},
    outcome::PolicyKind,
    port::Capability,
    queue::{Address, Queue},
    queue_listener::{QueueControl, QueueListener, QueueListenerConfig, QueueListenerEvent},
};

/// Maximum length of a filter's name, in bytes: it is a part of lineage ids.
const LONGEST_NAME: usize = 64;

/// One step of a chain: takes messages from a queue, and sends the results to others. The
/// [module's page](super) has the details.
///
/// Clones share their state.
#[derive(Clone)]
pub struct Filter(pub(super) Arc<FilterInner>);

pub(super) struct FilterInner {
    pub(super) name: Name,
    pub(super) input: u64,
    pub(super) outputs: Vec<Output>,
    pub(super) config: QueueListenerConfig,
    longest: Option<Duration>,
    pub(super) common: Common,
    listener: QueueListener,
    events: Events<Event>,
}

/// A queue that receives results.
pub(super) struct Output {
    /// `None` for the output of [`Emit::one`](super::Emit::one).
    name: Option<Name>,
    pub(super) queue: Arc<dyn Queue>,
    /// Address of the queue, if deliveries of the input can be forwarded to it.
    pub(super) address: Option<Address>,
    /// Time for which the queue recognizes repeated messages, if it does.
    pub(super) window: Option<Duration>,
}

impl Output {
    /// Returns the name; empty for the output without one.
    pub(super) fn name(&self) -> &str {
        self.name.as_ref().map_or("", Name::as_str)
    }
}

/// Arguments of a filter, beside clock and entropy.
pub struct FilterSpec {
    name: Name,
    input: Arc<dyn Queue>,
    outputs: Vec<(Option<Name>, Arc<dyn Queue>)>,
    config: QueueListenerConfig,
    allows_duplicates: bool,
    listener: Builder<QueueListener>,
}

impl Builder<Filter> {
    /// Adds the queue that receives the messages of [`Emit::one`](super::Emit::one) and
    /// [`Emit::many`](super::Emit::many).
    pub fn output(mut self, queue: Arc<dyn Queue>) -> Self {
        self.spec.outputs.push((None, queue));
        self
    }

    /// Adds the queue that receives the messages of [`Emit::to`](super::Emit::to) with this name.
    pub fn named_output(mut self, name: impl Into<Name>, queue: Arc<dyn Queue>) -> Self {
        self.spec.outputs.push((Some(name.into()), queue));
        self
    }

    /// States that the readers of the outputs recognize repeated messages by their
    /// [`LINEAGE`](super::LINEAGE). An output of another engine then needs no window that is longer
    /// than the longest redelivery.
    pub fn allow_duplicates(mut self) -> Self {
        self.spec.allows_duplicates = true;
        self
    }

    /// Wakes the filter by notices of this topic, as a listener's
    /// [`notifier`](QueueListener::builder) does.
    pub fn notifier(mut self, notifier: Arc<dyn Notifier>, topic: impl Into<Name>) -> Self {
        self.spec.listener = self.spec.listener.notifier(notifier, topic);
        self
    }

    /// Obeys this control, as a listener's [`control`](QueueListener::builder) does.
    pub fn control(mut self, control: &QueueControl) -> Self {
        self.spec.listener = self.spec.listener.control(control);
        self
    }

    /// Sets the number of tasks by the number of waiting messages, as a listener's
    /// [`scaling`](QueueListener::builder) does.
    pub fn scaling(mut self, rule: impl Fn(u64) -> u32 + Send + Sync + 'static) -> Self {
        self.spec.listener = self.spec.listener.scaling(rule);
        self
    }
}

impl Component for Filter {
    type Built = Result<Self, ConfigError>;
    type Spec = FilterSpec;

    fn assemble(spec: FilterSpec, common: Common) -> Self::Built {
        let FilterSpec { name, input, outputs, config, allows_duplicates, mut listener } = spec;
        let common = Common { name: Some(name.clone()), entropy: Some(common.entropy()), ..common };
        listener.common = common.clone();
        let listener = listener.holds_forwards().build()?;
        let is_short = (1..=LONGEST_NAME).contains(&name.as_str().len());
        require(is_short, "name", "must have 1 to 64 bytes")?;
        let is_plain = name.as_str().bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        require(is_plain, "name", "must consist of visible ASCII characters other than `/`")?;
        require(!outputs.is_empty(), "output", "must be given at least once: use a listener for results elsewhere")?;
        let mut names = HashSet::new();
        for (name, _) in &outputs {
            let name = name.as_ref().map(Name::as_str);
            require(name != Some(""), "output", "must not have an empty name")?;
            require(names.insert(name), "output", "must have a name of its own")?;
        }
        let identity = input.identity();
        let address = input.address().filter(|_| input.capabilities().has(Capability::Forward));
        let longest = longest_redelivery(&*input, &config);
        let output = |(name, queue): (Option<Name>, Arc<dyn Queue>)| {
            require(queue.identity() != identity, "output", "must be another queue than the input")?;
            let can = queue.capabilities();
            let reachable = |to: &Address| address.as_ref().is_some_and(|from| from.shares_engine(to));
            let output =
                Output { name, address: queue.address().filter(reachable), window: can.deduplicates_for(), queue };
            if output.address.is_none() && !allows_duplicates {
                check_window(&output, longest)?;
            }
            Ok(output)
        };
        let outputs = outputs.into_iter().map(output).collect::<Result<_, ConfigError>>()?;
        let (input, events) = (lineage::of_queue(&identity), common.hooks.events());
        Ok(Self(Arc::new(FilterInner { name, input, outputs, config, longest, common, listener, events })))
    }
}

/// Returns the longest time for which messages of this input are delivered again. Where arrivals
/// wake no receiver, the next delivery begins up to one delay between polls after it could.
fn longest_redelivery(input: &dyn Queue, config: &QueueListenerConfig) -> Option<Duration> {
    let is_polled = !input.capabilities().has(Capability::Push);
    let polls = if is_polled { config.max_attempts.saturating_sub(1) } else { 0 };
    Some(config.longest_redelivery()?.saturating_add(config.idle.max.saturating_mul(polls)))
}

/// Refuses an output to which results are sent before their message ends, unless it recognizes them
/// for as long as the message may be delivered again.
fn check_window(output: &Output, longest: Option<Duration>) -> Result<(), ConfigError> {
    let (Some(window), backend) = (output.window, output.queue.capabilities().backend()) else {
        let rule = "is a queue of another engine that does not recognize repeated messages: use another one, or \
                    `allow_duplicates` if its readers recognize them by their lineage";
        return Err(ConfigError::new("output", rule));
    };
    let rule = match longest {
        None => "must be set for an output of another engine, so that the time of redeliveries is limited; or \
                 `allow_duplicates`"
            .to_owned(),
        Some(longest) if longest < window => return Ok(()),
        Some(longest) => format!(
            "is a queue of `{backend}` that recognizes repeated messages for {window:?}, and the settings deliver a \
             message again for up to {longest:?}: widen its window, shorten `max_attempts`, `retry`, `visibility`, `idle` or \
             `handler_timeout`, or `allow_duplicates` if readers recognize them by their lineage"
        ),
    };
    let field = if longest.is_none() { "handler_timeout" } else { "output" };
    Err(ConfigError::new(field, rule))
}

impl HasEntropy for Filter {}
impl HasEvents<Event> for Filter {}
impl HasEvents<QueueListenerEvent> for Filter {}

impl Filter {
    /// Creates a builder of a filter of this input, with the settings of its listener. Add at least
    /// one output. The name is a part of lineage ids: give all processes of a filter the same, and
    /// keep it.
    ///
    /// Methods of [this builder alone](crate::Builder#impl-Builder%3CFilter%3E): `output`,
    /// `named_output`, `allow_duplicates`, `notifier`, `control`, `scaling`.
    pub fn builder(name: impl Into<Name>, input: Arc<dyn Queue>, config: QueueListenerConfig) -> Builder<Self> {
        let listener = QueueListener::builder(input.clone(), config);
        let (name, outputs) = (name.into(), Vec::new());
        Builder::new(FilterSpec { name, input, outputs, config, allows_duplicates: false, listener })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// Returns the listener of the input: its state and events, and its pause. Its
    /// [`held`](crate::queue_listener::ListenerState::held) counts messages whose results wait for
    /// room.
    pub fn listener(&self) -> &QueueListener {
        &self.0.listener
    }

    /// Subscribes to the events that follow. Those of the input are
    /// [the listener's](Self::listener).
    pub fn events(&self) -> Subscription<Event> {
        self.0.events.subscribe()
    }

    /// Describes the filter and its listener, with warnings about their settings.
    pub fn explain(&self) -> Explanation {
        self.explain_with(&Explanation::default())
    }

    /// Describes the filter, its listener and the pipeline that its handler calls, with warnings
    /// about their settings. While the filter runs, it also warns if all tasks are busy and
    /// messages wait, or if results find their output full.
    pub fn explain_with(&self, handler: &Explanation) -> Explanation {
        let inner = &*self.0;
        let each = inner.outputs.iter().map(|output| {
            let name = if output.name().is_empty() { "the output".to_owned() } else { format!("`{}`", output.name()) };
            match (&output.address, output.window) {
                (Some(_), _) => format!("{name} in the step that ends the message"),
                (None, Some(window)) => format!("{name} before the message ends, recognized for {window:?}"),
                (None, None) => format!("{name} before the message ends"),
            }
        });
        let settings = format!("sends results to {}", each.collect::<Vec<_>>().join("; to "));
        let mut layer = Layer::new(PolicyKind::Custom("filter"), Some(inner.name.clone()), settings);
        let may_repeat = |output: &&Output| output.address.is_none() && check_window(output, inner.longest).is_err();
        if let Some(output) = inner.outputs.iter().find(may_repeat) {
            layer = layer.with_warning(format!(
                "duplicates are allowed, and the output `{}` does not recognize all: its readers must, by the header \
                 `{}`",
                output.name(),
                super::LINEAGE
            ));
        }
        if let Some(warning) = inner.slowness() {
            layer = layer.with_warning(warning);
        }
        self.0.listener.explain_with(handler).within(layer)
    }
}

impl FilterInner {
    /// Returns a warning if the filter, or the one behind it, is the slowest one of its chain now.
    fn slowness(&self) -> Option<String> {
        let (state, tasks) = (self.listener.state(), self.config.max_tasks);
        if state.held >= u64::from(tasks) {
            return Some(format!(
                "{} messages hold their results because an output is full: its readers are slower than this filter, and \
                 need more tasks or processes",
                state.held
            ));
        }
        let waiting = state.depth.map_or(0, |depth| depth.visible) + state.buffered;
        let is_busy = state.in_flight >= u64::from(tasks) && waiting > 0;
        is_busy.then(|| {
            format!(
                "all {tasks} tasks are busy, and {waiting} messages wait: a chain is as fast as its slowest filter, so raise \
                 `max_tasks` or run more processes"
            )
        })
    }

    pub(super) fn event(&self, event: impl FnOnce() -> Event) {
        if self.events.wanted() {
            self.events.send(Some(&self.name), self.common.clock.now(), event);
        }
    }
}

crate::build::debug_fields!(Filter, |this|
    name: this.0.name, outputs: this.0.outputs.iter().map(Output::name).collect::<Vec<_>>(),
    listener: this.0.listener
);
