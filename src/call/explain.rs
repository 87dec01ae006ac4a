//! A pipeline told in words: its order, and what in it will hurt.
use std::{fmt, time::Duration};

use super::Operation;
use crate::{config::Name, outcome::PolicyKind};

/// What stands around a call, outermost first, with warnings. Its `Display` is for people.
///
/// ```
/// use steadfast::{Pipeline, timeout::Timeout, retry::{Retry, RetryConfig}};
/// use std::time::Duration;
///
/// let pipeline = Pipeline::new()
///     .then(Timeout::new(Duration::from_secs(1)))
///     .then(Retry::new(RetryConfig::default()).unwrap())
///     .then(Timeout::new(Duration::from_secs(5)));
/// let explanation = pipeline.explain();
/// assert!(explanation.warnings().iter().any(|w| w.contains("5s") && w.contains("1s")));
/// println!("{explanation}");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Explanation {
    name: Option<Name>,
    layers: Vec<Layer>,
    operation: Option<Facts>,
}

/// What is known of the operation that is going to be called.
#[derive(Debug, Clone, Copy)]
struct Facts {
    idempotent: Option<bool>,
    can_overlap: bool,
}

/// One policy, as it describes itself.
#[derive(Debug, Clone)]
pub struct Layer {
    kind: PolicyKind,
    name: Option<Name>,
    settings: String,
    timeout: Option<Duration>,
    budget: bool,
    idempotent: bool,
    delay: Option<Duration>,
    hangs: bool,
    warnings: Vec<String>,
}

impl Layer {
    /// A policy of this kind, with its settings in words.
    pub fn new(kind: PolicyKind, name: Option<Name>, settings: impl Into<String>) -> Self {
        Self {
            kind,
            name,
            settings: settings.into(),
            timeout: None,
            budget: false,
            idempotent: true,
            delay: None,
            hangs: false,
            warnings: Vec::new(),
        }
    }

    /// It gives what is inside it at most this long.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// It has a budget that bounds what it adds to the load.
    #[must_use]
    pub fn with_budget(mut self, has: bool) -> Self {
        self.budget = has;
        self
    }

    /// Sets whether operations inside it that carry no mark may run twice. Yes, where it is not
    /// called.
    #[must_use]
    pub fn with_idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// It starts another attempt when one has taken this long.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// It may keep a call waiting for ever.
    #[must_use]
    pub fn with_hangs(mut self, hangs: bool) -> Self {
        self.hangs = hangs;
        self
    }

    /// It has a setting that will hurt by itself.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }

    /// The kind of policy.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }
}

impl Explanation {
    pub(crate) fn new(name: Option<Name>) -> Self {
        Self { name, layers: Vec::new(), operation: None }
    }

    /// The same for a call of this operation.
    pub(crate) fn of(mut self, operation: &impl Operation) -> Self {
        self.operation = Some(Facts { idempotent: operation.is_idempotent(), can_overlap: operation.can_overlap() });
        self
    }

    /// Adds what stands outside all of it.
    pub(crate) fn within(mut self, layer: Layer) -> Self {
        self.layers.insert(0, layer);
        self
    }

    /// Adds the next inner policy.
    pub fn push(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// The policies, outermost first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// What will hurt, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (at, layer) in self.layers.iter().enumerate() {
            let (outside, inside) = (&self.layers[..at], &self.layers[at + 1..]);
            let has = |layers: &[Layer], kind| layers.iter().any(|l| l.kind == kind);
            warnings.extend(layer.warnings.iter().map(|w| format!("{}: {w}", layer.title())));
            match layer.kind {
                PolicyKind::Timeout => {
                    if let Some(total) = outside.iter().filter_map(|l| l.timeout).min()
                        && let Some(own) = layer.timeout
                        && own > total
                    {
                        warnings.push(format!(
                            "a time-out of {own:?} inside one of {total:?} never fires: the outer one comes first"
                        ));
                    }
                }
                PolicyKind::Retry => {
                    let breaker = has(inside, PolicyKind::CircuitBreaker);
                    if !layer.budget && !breaker {
                        warnings.push(format!(
                            "{} has neither a budget nor a circuit breaker inside it: when the other side fails for long, \
                             it multiplies the load",
                            layer.title()
                        ));
                    } else if !layer.budget {
                        warnings.push(format!(
                            "{} stands outside a circuit breaker with no budget: until the breaker opens, each call may \
                             become several",
                            layer.title()
                        ));
                    }
                    if !has(inside, PolicyKind::Timeout) && !has(outside, PolicyKind::Timeout) {
                        warnings.push(format!(
                            "{} has no time-out around its attempts: one that hangs is never retried",
                            layer.title()
                        ));
                    }
                    if self.operation.is_some_and(|operation| !operation.idempotent.unwrap_or(layer.idempotent)) {
                        warnings.push(format!(
                            "{} repeats an operation that is not marked as idempotent only after a failure that proves that \
                             it was not sent: after a time-out it gives up",
                            layer.title()
                        ));
                    }
                    if has(outside, PolicyKind::Retry) {
                        warnings.push(format!(
                            "{} stands inside another retry and leaves the attempts to it",
                            layer.title()
                        ));
                    }
                }
                PolicyKind::CircuitBreaker => {
                    if !has(inside, PolicyKind::Timeout) {
                        warnings.push(format!(
                            "{} has no time-out inside it: calls that hang are never counted, so it cannot open on them",
                            layer.title()
                        ));
                    }
                    if has(inside, PolicyKind::Retry) {
                        warnings.push(format!(
                            "{} stands outside a retry: it sees a failure only after all attempts",
                            layer.title()
                        ));
                    }
                }
                PolicyKind::Hedge => self.warn_of_hedge(at, &mut warnings),
                PolicyKind::Fallback => self.warn_of_fallback(at, &mut warnings),
                PolicyKind::Chaos => {
                    if layer.hangs && !has(outside, PolicyKind::Timeout) {
                        warnings
                            .push(format!("{} has no time-out outside it: what it hangs never ends", layer.title()));
                    }
                    if let Some(spared) = inside.iter().find(|other| other.kind != PolicyKind::Chaos) {
                        let (chaos, spared) = (layer.title(), spared.title());
                        warnings.push(format!("{chaos} stands outside {spared}, which never meets its faults"));
                    }
                }
                _ => {}
            }
        }
        warnings
    }

    fn warn_of_fallback(&self, at: usize, warnings: &mut Vec<String>) {
        let (layer, outside) = (&self.layers[at], &self.layers[..at]);
        let consequences = [
            (PolicyKind::Timeout, "a time-out: when that one fires, nothing falls back"),
            (PolicyKind::Retry, "a retry, which takes the substitute's answer for a success: nothing is repeated"),
            (PolicyKind::Hedge, "a hedge, where nothing falls back"),
            (PolicyKind::CircuitBreaker, "a circuit breaker, which never sees the failures that it replaces"),
            (PolicyKind::Fallback, "another fallback: a call has one substitute, and the inner one asks for it"),
        ];
        for (kind, consequence) in consequences {
            if outside.iter().any(|other| other.kind == kind) {
                warnings.push(format!("{} stands inside {consequence}", layer.title()));
            }
        }
        let refuses = |other: &&Layer| {
            use PolicyKind::{ClientThrottle, ConcurrencyLimit, Degradation, RateLimit, Shed};
            matches!(other.kind, ClientThrottle | ConcurrencyLimit | Degradation | RateLimit | Shed)
        };
        if let Some(other) = outside.iter().find(refuses) {
            warnings.push(format!("{} stands inside {}, whose refusals it never sees", layer.title(), other.title()));
        }
    }

    fn warn_of_hedge(&self, at: usize, warnings: &mut Vec<String>) {
        let (layer, outside, inside) = (&self.layers[at], &self.layers[..at], &self.layers[at + 1..]);
        let mut warn = |what: &str| warnings.push(format!("{} {what}", layer.title()));
        if !layer.budget {
            warn("has no budget: when the other side is slow as a whole, it multiplies the load");
        }
        let mark = self.operation.and_then(|operation| operation.idempotent);
        if !mark.unwrap_or(layer.idempotent) {
            warn("never hedges an operation that is not marked as idempotent: it runs once");
        } else if mark.is_none()
            && let Some(other) = self.layers.iter().find(|other| !other.idempotent)
        {
            warn(&format!("runs operations twice that {} takes for not idempotent", other.title()));
        }
        if self.operation.is_some_and(|operation| !operation.can_overlap) {
            warn("never hedges an operation that cannot overlap itself: it runs once");
        }
        if outside.iter().any(|other| other.kind == PolicyKind::Hedge) {
            warn("stands inside another hedge and leaves the attempts to it");
        }
        if outside.iter().any(|other| other.kind == PolicyKind::CircuitBreaker) {
            warn("stands inside a circuit breaker, which sees the best of several attempts");
        }
        if let (Some(delay), Some(limit)) = (layer.delay, inside.iter().filter_map(|other| other.timeout).min())
            && limit <= delay
        {
            warn(&format!("waits {delay:?}, and a time-out of {limit:?} inside it comes first"));
        }
    }
}

impl Layer {
    fn title(&self) -> String {
        match &self.name {
            Some(name) => format!("the {} `{name}`", self.kind),
            None => format!("the {}", self.kind),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => writeln!(f, "pipeline `{name}`, outermost first:")?,
            None => writeln!(f, "pipeline, outermost first:")?,
        }
        for (at, layer) in self.layers.iter().enumerate() {
            let kind = layer.kind.to_string();
            let name = layer.name.as_ref().map_or(String::new(), |n| format!(" `{n}`"));
            writeln!(f, "  {}. {kind}{name}: {}", at + 1, layer.settings)?;
        }
        if self.layers.is_empty() {
            writeln!(f, "  (no policy)")?;
        }
        for warning in self.warnings() {
            writeln!(f, "  warning: {warning}")?;
        }
        Ok(())
    }
}
