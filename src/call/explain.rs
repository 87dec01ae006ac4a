//! The description of a pipeline: its order, and warnings about its settings.
use std::{any::Any, fmt, sync::Arc, time::Duration};

use super::Operation;
use crate::{config::Name, outcome::PolicyKind};

/// The policies around a call, outermost first, with warnings. Its `Display` is for people.
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

/// The marks of the operation that is going to be called.
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
    component: Option<Arc<dyn Any + Send + Sync>>,
    is_part: bool,
}

impl Layer {
    /// Creates a layer of this kind, with its settings in words.
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
            component: None,
            is_part: false,
        }
    }

    /// Sets the policy itself, for what shows more of it than its settings.
    #[must_use]
    pub(crate) fn with_component(mut self, policy: &(impl Any + Clone + Send + Sync)) -> Self {
        self.component = Some(Arc::new(policy.clone()));
        self
    }

    /// Returns `true` if the policy's settings are a part of those of a stack.
    #[cfg_attr(not(feature = "console"), allow(dead_code, reason = "read by the console alone"))]
    pub(crate) fn is_part(&self) -> bool {
        self.is_part
    }

    /// Returns the policy itself, if it is one of this crate.
    #[cfg_attr(not(feature = "console"), allow(dead_code, reason = "read by the console alone"))]
    pub(crate) fn component(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.component.as_deref()
    }

    /// Sets the maximum time that the policy gives to its inner policies.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets if a budget bounds the load that the policy adds.
    #[must_use]
    pub fn with_budget(mut self, has: bool) -> Self {
        self.budget = has;
        self
    }

    /// Sets if unmarked operations inside the policy may run twice. `true` by default.
    #[must_use]
    pub fn with_idempotent(mut self, idempotent: bool) -> Self {
        self.idempotent = idempotent;
        self
    }

    /// Sets the time after which the policy starts another attempt beside a running one.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay);
        self
    }

    /// Sets if the policy may keep a call waiting forever.
    #[must_use]
    pub fn with_hangs(mut self, hangs: bool) -> Self {
        self.hangs = hangs;
        self
    }

    /// Adds a warning about a setting.
    #[must_use]
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }

    /// Returns the kind of policy.
    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    /// Returns the name of the policy, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_ref().map(Name::as_str)
    }

    /// Returns the settings of the policy in words.
    pub fn settings(&self) -> &str {
        &self.settings
    }
}

impl Explanation {
    pub(crate) fn new(name: Option<Name>) -> Self {
        Self { name, layers: Vec::new(), operation: None }
    }

    /// Adds the marks of the operation that is going to be called.
    pub(crate) fn of(mut self, operation: &impl Operation) -> Self {
        self.operation = Some(Facts { idempotent: operation.is_idempotent(), can_overlap: operation.can_overlap() });
        self
    }

    /// Adds a layer outside all others.
    pub(crate) fn within(mut self, layer: Layer) -> Self {
        self.layers.insert(0, layer);
        self
    }

    /// Adds the next inner policy.
    pub fn push(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// Adds the next inner policies, whose settings are parts of those of a stack.
    pub(crate) fn push_parts(&mut self, describe: impl FnOnce(&mut Self)) {
        let first = self.layers.len();
        describe(self);
        self.layers[first..].iter_mut().for_each(|layer| layer.is_part = true);
    }

    /// Returns the policies, outermost first.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Returns warnings about settings and order, one sentence each.
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
                            "a time-out of {own:?} inside one of {total:?} never fires: the outer one fires first"
                        ));
                    }
                }
                PolicyKind::Retry => {
                    let breaker = has(inside, PolicyKind::CircuitBreaker);
                    if !layer.budget && !breaker {
                        warnings.push(format!(
                            "{} has neither a budget nor a circuit breaker inside it: in a long outage it multiplies the \
                             load",
                            layer.title()
                        ));
                    } else if !layer.budget {
                        warnings.push(format!(
                            "{} stands outside a circuit breaker and has no budget: until the breaker opens, each call may \
                             become several",
                            layer.title()
                        ));
                    }
                    if !has(inside, PolicyKind::Timeout) && !has(outside, PolicyKind::Timeout) {
                        warnings.push(format!(
                            "{} has no time-out around its attempts: an attempt that hangs is never retried",
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
                        warnings.push(format!(
                            "{} has no time-out outside it: calls that it hangs never end",
                            layer.title()
                        ));
                    }
                    if let Some(other) = inside.iter().find(|other| other.kind != PolicyKind::Chaos) {
                        let (chaos, other) = (layer.title(), other.title());
                        warnings.push(format!("{chaos} stands outside {other}, which never sees its faults"));
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
            (PolicyKind::Timeout, "a time-out: if that one fires, no fallback runs"),
            (PolicyKind::Retry, "a retry, which sees the fallback's answer as a success: it repeats nothing"),
            (PolicyKind::Hedge, "a hedge, where no fallback runs"),
            (PolicyKind::CircuitBreaker, "a circuit breaker, which never sees the failures that it replaces"),
            (PolicyKind::Fallback, "another fallback: a call has one fallback, and the inner policy runs it"),
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
            warnings.push(format!("{} stands inside {}, whose rejections it never sees", layer.title(), other.title()));
        }
    }

    fn warn_of_hedge(&self, at: usize, warnings: &mut Vec<String>) {
        let (layer, outside, inside) = (&self.layers[at], &self.layers[..at], &self.layers[at + 1..]);
        let mut warn = |what: &str| warnings.push(format!("{} {what}", layer.title()));
        if !layer.budget {
            warn("has no budget: if the whole other side is slow, it multiplies the load");
        }
        let mark = self.operation.and_then(|operation| operation.idempotent);
        if self.operation.is_some() && !mark.unwrap_or(layer.idempotent) {
            warn("never hedges an operation that is not marked as idempotent: it runs once");
        } else if mark.is_none()
            && layer.idempotent
            && let Some(other) = self.layers.iter().find(|other| !other.idempotent)
        {
            warn(&format!("runs operations twice that {} treats as not idempotent", other.title()));
        }
        if self.operation.is_some_and(|operation| !operation.can_overlap) {
            warn("never hedges an operation that cannot run concurrently: it runs once");
        }
        if outside.iter().any(|other| other.kind == PolicyKind::Hedge) {
            warn("stands inside another hedge and leaves the attempts to it");
        }
        if outside.iter().any(|other| other.kind == PolicyKind::CircuitBreaker) {
            warn("stands inside a circuit breaker, which sees only the best of several attempts");
        }
        if let (Some(delay), Some(limit)) = (layer.delay, inside.iter().filter_map(|other| other.timeout).min())
            && limit <= delay
        {
            warn(&format!("waits {delay:?}, but a time-out of {limit:?} inside it fires first"));
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
