//! Breakers and rate limits by key.
use std::{
    fmt,
    hash::{BuildHasher, Hash},
};

use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, Table, Trouble, count},
    settings::{self, Settings},
};
use crate::{
    circuit_breaker::{CircuitBreaker, KeyedBreakers, KeyedBreakersConfig, State},
    port::BoxFuture,
    throttling::{KeyedRateLimitConfig, KeyedRateLimiter},
};

/// Maximum number of keys that are listed: those in trouble first.
const LISTED: usize = 50;

/// Number of keys after which no further ones are looked at for the list.
const READ: usize = 10_000;

/// Returns a key as a page shows it: its `Debug` form, without the quotes of a text.
fn words(key: &impl fmt::Debug) -> String {
    let words = format!("{key:?}");
    words.strip_prefix('"').and_then(|words| words.strip_suffix('"')).map(str::to_owned).unwrap_or(words)
}

struct Breakers<K, S>(KeyedBreakers<K, S>);

impl<K, S> Panel for KeyedBreakers<K, S>
where
    K: Eq + Hash + Clone + fmt::Debug + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn view(&self) -> View {
        View(Box::new(Breakers(self.clone())))
    }
}

impl<K: Eq + Hash + Clone + fmt::Debug, S: BuildHasher> Breakers<K, S> {
    fn find(&self, key: &str) -> Option<CircuitBreaker> {
        self.0.iter().find(|(other, _)| words(other) == key).map(|(_, breaker)| breaker)
    }

    fn whole(&self) -> ReadOut {
        let states = self.0.states();
        let number =
            |wanted: State| states.iter().zip(State::ALL).filter(|(_, state)| *state == wanted).map(|(n, _)| n).sum();
        let (open, isolated): (usize, usize) = (number(State::Open), number(State::Isolated));
        let (half_open, all): (usize, usize) = (number(State::HalfOpen), states.iter().sum());
        let mut out = match open + isolated {
            0 => ReadOut::new("closed"),
            n => {
                let why = format!("calls of {n} of {} are rejected", count(all as u64, "key"));
                ReadOut::new("open for some").trouble(Trouble::Open, why)
            }
        };
        out = out.level("open", open as f64).fact("isolated", isolated).fact("half-open", half_open).fact("keys", all);
        let mut keys: Vec<_> = self
            .0
            .iter()
            .take(READ)
            .map(|(key, breaker)| (breaker.state() == State::Closed, words(&key), breaker))
            .collect();
        keys.sort_by(|(closed, key, _), (other_closed, other_key, _)| (closed, key).cmp(&(other_closed, other_key)));
        let caption = if all > LISTED { format!("Keys, {LISTED} of {all}") } else { "Keys".to_owned() };
        let mut table = Table::new(caption, &["key", "state", "calls in the window", "failures", "rejected"]);
        for (_, key, breaker) in keys.into_iter().take(LISTED) {
            let now = breaker.snapshot();
            let is_wrong = matches!(now.state, State::Open | State::Isolated);
            let numbers = [now.calls, now.failures, now.rejected].map(|n| n.to_string());
            let [calls, failures, rejected] = numbers;
            let cells = [key.clone(), now.state.as_str().to_owned(), calls, failures, rejected];
            table.push_of(key, is_wrong, cells);
        }
        out.table(table)
    }
}

impl<K, S> Source for Breakers<K, S>
where
    K: Eq + Hash + Clone + fmt::Debug + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn kind(&self) -> &'static str {
        "circuit breakers by key"
    }

    fn has_parts(&self) -> bool {
        true
    }

    /// Keys have the settings of all.
    fn settings(&self, of: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        if of.is_some() { None } else { settings::of::<KeyedBreakersConfig, _>(&self.0) }
    }

    fn read<'a>(&'a self, look: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        Box::pin(async move {
            let Some(key) = &look.of else { return Ok(self.whole()) };
            match self.find(key) {
                Some(breaker) => breaker.read(look).await,
                None => Ok(ReadOut::new("gone")),
            }
        })
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(async move {
            match self.find(order.part()) {
                Some(breaker) => breaker.act(order).await,
                None => Err("the key is gone".to_owned()),
            }
        })
    }
}

struct Limits<K, S>(KeyedRateLimiter<K, S>);

impl<K, S> Panel for KeyedRateLimiter<K, S>
where
    K: Eq + Hash + Clone + fmt::Debug + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn view(&self) -> View {
        View(Box::new(Limits(self.clone())))
    }
}

impl<K, S> Source for Limits<K, S>
where
    K: Eq + Hash + Clone + fmt::Debug + Send + Sync + 'static,
    S: BuildHasher + Send + Sync + 'static,
{
    fn kind(&self) -> &'static str {
        "rate limits by key"
    }

    fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        settings::of::<KeyedRateLimitConfig, _>(&self.0)
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let all = self.0.len();
        // A list of a million keys is not made once a second.
        let keys = if all <= READ { self.0.keys() } else { Vec::new() };
        let mut used: Vec<_> = keys.iter().map(|key| (self.0.usage(key), words(key))).collect();
        used.sort_by(|(one, key), (other, other_key)| (one.available, key).cmp(&(other.available, other_key)));
        let full = used.iter().filter(|(usage, _)| usage.available == 0).count();
        let mut out = ReadOut::new(if full > 0 { "used up by some" } else { "has room" });
        out = out.level("keys", all as f64);
        out = match all <= READ {
            true => out.fact("keys without room", full),
            false => out.fact("keys without room", format!("not looked at: there are more than {READ}")),
        };
        let caption = if used.len() > LISTED { format!("Keys, {LISTED} of {all}") } else { "Keys".to_owned() };
        let mut table = Table::new(caption, &["key", "used", "available", "quota"]);
        for (usage, key) in used.into_iter().take(LISTED) {
            let quota = format!("{} in {:?}", usage.quota.permits, usage.quota.per);
            table.push([key, usage.used.to_string(), usage.available.to_string(), quota]);
        }
        ready(Ok(out.table(table)))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        ready(unknown(order))
    }
}
