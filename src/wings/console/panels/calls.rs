//! Calls: circuit breakers, and pipelines with the policies in them.
use std::{
    any::Any,
    task::{Context, Poll, Waker},
};

use super::super::{
    calls::Calls,
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{Note, ReadOut, Table, Trouble, spoken},
    settings::{self, Settings},
};
use crate::{
    call::{BoxedPipeline, Explanation, Layer, Pipeline, Policy},
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig, State},
    fallback::Fallback,
    hedge::Hedge,
    outcome::{PolicyKind, Reason, Rejected},
    port::BoxFuture,
    retry::Retry,
    standard::{Standard, StandardConfig},
    throttling::{AdaptiveLimiter, ClientThrottle, ConcurrencyLimiter, RateLimiter, Shedder},
    time::Clock,
    timeout::Timeout,
};

impl Panel for CircuitBreaker {
    fn view(&self) -> View {
        View(Box::new(self.clone()))
    }
}

impl Source for CircuitBreaker {
    fn kind(&self) -> &'static str {
        "circuit breaker"
    }

    fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        settings::of::<CircuitBreakerConfig, _>(self)
    }

    fn breaker(&self) -> Option<&CircuitBreaker> {
        Some(self)
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let now = self.snapshot();
        let mut out = ReadOut::new(now.state.as_str()).since(Some(now.in_state));
        if let (State::Open, Some(rule)) = (now.state, now.rule) {
            out = out.fact("opened by", rule);
        }
        if let (State::Open, Some(wait)) = (now.state, now.retry_after) {
            out = out.fact(
                "probes",
                if wait.is_zero() { "the next call".to_owned() } else { format!("in {}", spoken(wait)) },
            );
        }
        let rejected = |reason| Rejected::new(PolicyKind::CircuitBreaker, reason);
        let since = now.since.unwrap_or_default();
        out = match (now.state, now.rule) {
            (State::Open, Some(rule)) => {
                let refusal = rejected(Reason::CircuitOpen { since, rule, last: now.last });
                let probes = match now.retry_after {
                    Some(wait) if wait.is_zero() => "; the next call probes".to_owned(),
                    Some(wait) => format!("; probes in {}", spoken(wait)),
                    None => String::new(),
                };
                out.trouble(Trouble::Open, format!("{refusal}{probes}"))
            }
            (State::Open, None) => out.trouble(Trouble::Open, "open"),
            (State::Isolated, _) => out.trouble(Trouble::Open, rejected(Reason::Isolated { since }).to_string()),
            (State::HalfOpen, _) => {
                out.why = "probes decide whether it closes".to_owned();
                out
            }
            (State::Closed, _) if now.share < 1.0 => {
                out.why = rejected(Reason::SlowStart).to_string();
                out
            }
            (State::Closed, _) => out,
        };
        let is_shadow = self.is_shadow();
        if is_shadow {
            out.trouble = None;
            out.why = match out.why.as_str() {
                "" => "in shadow mode: it rejects no call".to_owned(),
                why => format!("in shadow mode, it rejects no call; otherwise: {why}"),
            };
        }
        let share = |n: u64| if now.calls == 0 { 0.0 } else { (n as f64 * 1000.0 / now.calls as f64).round() / 10.0 };
        out = out
            .fact("calls in the window", now.calls)
            .level("failures in the window, %", share(now.failures))
            .fact("slow in the window, %", share(now.slow))
            .total("rejected calls", "rejected in a minute", now.rejected)
            .fact("openings", now.total_openings)
            .fact("failed calls", now.total_failures)
            .fact("shadow mode", if is_shadow { "on" } else { "off" });
        let version = format!("{}/{}/{is_shadow}", now.state.as_str(), now.entered.as_nanos());
        let mut offer = |name, title: &str, effect: &str| {
            out = std::mem::take(&mut out).action(name, title, effect, &version, Note::None);
        };
        if now.state != State::Isolated {
            let effect = match is_shadow {
                true => "In shadow mode it rejects no call. Rejects all once that is off, until it is closed manually.",
                false => "Rejects all calls from now on, until the breaker is closed manually.",
            };
            offer("isolate", "Isolate", effect);
        }
        if now.state != State::Closed {
            offer(
                "close",
                "Close",
                "Lets all calls pass from now on. If it opens again soon, it stays open for longer.",
            );
        }
        offer("reset", "Reset", "Closes the breaker and forgets its window and its earlier openings.");
        match is_shadow {
            false => offer("shadow", "Turn shadow mode on", "The breaker goes on measuring, and rejects no call."),
            true => offer("enforce", "Turn shadow mode off", "The breaker rejects calls again while it is open."),
        }
        ready(Ok(out))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        match order.action.as_str() {
            "isolate" => self.isolate(),
            "close" => self.close(),
            "reset" => self.reset(),
            "shadow" => self.set_shadow(true),
            "enforce" => {
                self.set_shadow(false);
                if self.is_shadow() {
                    return ready(Err("the registry of the breaker is in shadow mode".to_owned()));
                }
            }
            _ => return ready(unknown(order)),
        }
        let shadow = if self.is_shadow() { ", in shadow mode" } else { "" };
        ready(Ok(format!("The breaker is {}{shadow}.", self.state().as_str())))
    }
}

/// A component that describes itself as policies, outermost first.
trait Layered: Send + Sync + 'static {
    fn explain(&self) -> Explanation;

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        None
    }
}

impl<P: Policy + Send + Sync + 'static, C: Send + Sync + 'static> Layered for Pipeline<P, C> {
    fn explain(&self) -> Explanation {
        self.explain()
    }
}

impl<T: Send + 'static, E: Send + 'static> Layered for BoxedPipeline<T, E> {
    fn explain(&self) -> Explanation {
        self.explain()
    }
}

impl Layered for Standard {
    fn explain(&self) -> Explanation {
        self.explain()
    }

    fn settings(&self) -> Option<Box<dyn Settings + '_>> {
        settings::of::<StandardConfig, _>(self)
    }
}

/// A pipeline, and the policies in it, each of which is a part of it.
struct Layers<L> {
    pipeline: L,
    /// The policies that the pipeline had when the console was built, with their counts.
    counted: Vec<(Place, Box<dyn Source>)>,
    /// Breakers that the console shows beside the pipeline: their trouble is theirs.
    beside: Vec<CircuitBreaker>,
}

/// A policy among others: its kind, its name, and the number of such ones before it.
#[derive(PartialEq)]
struct Place(PolicyKind, Option<String>, usize);

impl Place {
    fn of(layers: &[Layer], at: usize) -> Self {
        let is_such = |other: &Layer| (other.kind(), other.name()) == (layers[at].kind(), layers[at].name());
        let before = layers[..at].iter().filter(|other| is_such(other)).count();
        Self(layers[at].kind(), layers[at].name().map(str::to_owned), before)
    }
}

/// Returns the panel of a policy of this crate.
fn panel_of(layer: &Layer) -> Option<Box<dyn Source>> {
    fn of<P: Panel + 'static>(policy: &(dyn Any + Send + Sync)) -> Option<Box<dyn Source>> {
        policy.downcast_ref::<P>().map(|policy| policy.view().0)
    }
    let policy = layer.component()?;
    let kinds = [
        of::<CircuitBreaker>,
        of::<Calls>,
        of::<Retry>,
        of::<Timeout>,
        of::<Hedge>,
        of::<Fallback>,
        of::<RateLimiter>,
        of::<ClientThrottle>,
        of::<ConcurrencyLimiter>,
        of::<AdaptiveLimiter>,
        of::<Shedder>,
    ];
    kinds.iter().find_map(|of| of(policy))
}

/// Returns the result of a future that is ready: policies of calls ask no engine.
fn at_once<T>(mut future: BoxFuture<'_, T>) -> Option<T> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Returns the name of a layer as a part of its pipeline.
fn part(layer: &Layer, at: usize) -> String {
    format!("{}. {}", at + 1, layer.kind())
}

impl<L: Layered> Layers<L> {
    /// Runs this with the panel of a layer, which has its counts if it was there from the start.
    fn with<T>(&self, layers: &[Layer], at: usize, run: impl FnOnce(&dyn Source) -> T) -> Option<T> {
        let place = Place::of(layers, at);
        match self.counted.iter().find(|(other, _)| *other == place) {
            Some((_, panel)) => Some(run(&**panel)),
            None => panel_of(&layers[at]).map(|panel| run(&*panel)),
        }
    }

    /// Returns the policies, and which of them is meant.
    fn find(&self, of: &str) -> Option<(Vec<Layer>, usize)> {
        let layers = self.pipeline.explain().layers().to_vec();
        let at = (0..layers.len()).find(|at| part(&layers[*at], *at) == of)?;
        Some((layers, at))
    }

    /// Reads a policy: all are ready at once.
    fn read_layer(&self, layers: &[Layer], at: usize, look: &Look) -> Option<ReadOut> {
        let look = Look { of: None, ..look.clone() };
        self.with(layers, at, |panel| at_once(panel.read(&look))).flatten()?.ok()
    }

    fn whole(&self, look: &Look) -> ReadOut {
        let explanation = self.pipeline.explain();
        let layers = explanation.layers();
        let calls = layers.iter().find_map(|layer| layer.component()?.downcast_ref::<Calls>());
        let rejections = calls.map(Calls::rejections);
        let mut out = calls.map_or_else(|| ReadOut::new("in use"), Calls::out);
        out = out.fact("layers", layers.len()).fact("warnings", explanation.warnings().len());
        let columns = ["layer", "name", "state", "figures", "refused, 15 min", "settings"];
        let mut table = Table::new("Layers, outermost first", &columns);
        let mut worst: Option<ReadOut> = None;
        for (at, layer) in layers.iter().enumerate() {
            let own = self.read_layer(layers, at, look);
            let is_alone = layers.iter().filter(|other| other.kind() == layer.kind()).count() == 1;
            let refused = rejections.as_ref().filter(|_| is_alone).map(|all| all.by(layer.kind())).filter(|n| *n > 0);
            let figures = |out: &ReadOut| {
                let facts: Vec<_> =
                    out.facts.iter().take(4).map(|(label, value)| format!("{label}: {value}")).collect();
                facts.join("; ")
            };
            let cells = [
                part(layer, at),
                layer.name().unwrap_or_default().to_owned(),
                own.as_ref().map(|out| out.state.clone()).unwrap_or_default(),
                own.as_ref().map(figures).unwrap_or_default(),
                refused.map(|n| n.to_string()).unwrap_or_default(),
                layer.settings().to_owned(),
            ];
            let trouble = own.as_ref().and_then(|own| own.trouble);
            match own {
                Some(_) => table.push_of(cells[0].clone(), trouble.is_some(), cells),
                None => table.push(cells),
            }
            let is_beside = layer
                .component()
                .and_then(|policy| policy.downcast_ref::<CircuitBreaker>())
                .is_some_and(|breaker| self.beside.iter().any(|other| other.is_same(breaker)));
            if let Some(own) = own.filter(|own| own.trouble.is_some() && !is_beside)
                && worst.as_ref().is_none_or(|worst| own.trouble < worst.trouble)
            {
                worst = Some(own);
            }
        }
        if let Some(worst) = worst {
            (out.state, out.since, out.trouble, out.why) = (worst.state, worst.since, worst.trouble, worst.why);
        }
        out.tables.insert(0, table);
        let mut warnings = Table::new("Warnings", &["warning"]);
        explanation.warnings().into_iter().for_each(|warning| warnings.push([warning]));
        out.table(warnings)
    }
}

impl<L: Layered> Source for Layers<L> {
    fn kind(&self) -> &'static str {
        "pipeline"
    }

    fn has_parts(&self) -> bool {
        true
    }

    fn start(&mut self, clock: &Clock, beside: &[CircuitBreaker]) {
        self.beside = beside.to_vec();
        let explanation = self.pipeline.explain();
        for (at, layer) in explanation.layers().iter().enumerate() {
            if let Some(mut panel) = panel_of(layer) {
                panel.start(clock, beside);
                self.counted.push((Place::of(explanation.layers(), at), panel));
            }
        }
    }

    /// A part of a stack has its settings from the stack.
    fn settings(&self, of: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        let Some(of) = of else { return self.pipeline.settings() };
        let (layers, at) = self.find(of)?;
        let place = Place::of(&layers, at);
        let (_, panel) = self.counted.iter().find(|(other, _)| *other == place && !layers[at].is_part())?;
        panel.settings(None)
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        ready(Ok(match &look.of {
            None => self.whole(look),
            Some(of) => self
                .find(of)
                .and_then(|(layers, at)| self.read_layer(&layers, at, look))
                .unwrap_or_else(|| ReadOut::new("gone")),
        }))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        let found = self.find(order.part());
        let done = found.and_then(|(layers, at)| self.with(&layers, at, |panel| at_once(panel.act(order))).flatten());
        ready(done.unwrap_or_else(|| unknown(order)))
    }
}

fn layers(pipeline: impl Layered) -> View {
    View(Box::new(Layers { pipeline, counted: Vec::new(), beside: Vec::new() }))
}

impl<P: Policy + Clone + Send + Sync + 'static, C: Clone + Send + Sync + 'static> Panel for Pipeline<P, C> {
    fn view(&self) -> View {
        layers(self.clone())
    }
}

impl<T: Send + 'static, E: Send + 'static> Panel for BoxedPipeline<T, E> {
    fn view(&self) -> View {
        layers(self.clone())
    }
}

impl Panel for Standard {
    fn view(&self) -> View {
        layers(self.clone())
    }
}
