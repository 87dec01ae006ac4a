//! Caches.
use std::hash::Hash;

use super::super::{
    panel::{Look, Order, Panel, Source, View, ready, unknown},
    readout::{ReadOut, Table, Trouble},
    settings::{self, Settings},
};
use crate::{
    cache_aside::{CacheAside, CacheAsideConfig},
    port::BoxFuture,
};

/// A cache, whatever its keys and values are.
struct Cache<K: Hash + Eq, V>(CacheAside<K, V>);

impl<K: Hash + Eq + Clone + Send + Sync + 'static, V: Clone + Send + Sync + 'static> Panel for CacheAside<K, V> {
    fn view(&self) -> View {
        View(Box::new(Cache(self.clone())))
    }
}

impl<K: Hash + Eq + Clone + Send + Sync + 'static, V: Clone + Send + Sync + 'static> Source for Cache<K, V> {
    fn kind(&self) -> &'static str {
        "cache"
    }

    fn settings(&self, _: Option<&str>) -> Option<Box<dyn Settings + '_>> {
        settings::of::<CacheAsideConfig, _>(&self.0)
    }

    fn read<'a>(&'a self, _: &'a Look) -> BoxFuture<'a, Result<ReadOut, String>> {
        let now = self.0.stats();
        let gets = now.hits + now.misses;
        let share = if gets == 0 { 0.0 } else { (now.hits as f64 * 1000.0 / gets as f64).round() / 10.0 };
        let [remote, backplane] = self.0.tiers_up();
        let mut out = ReadOut::new("in use");
        if remote == Some(false) {
            let why = "the remote tier failed too often: loads bypass it, but for one that probes it";
            out = ReadOut::new("without its remote tier").trouble(Trouble::Lost, why);
        } else if backplane == Some(false) {
            let why = "the backplane failed too often: invalidations of other processes may come late";
            out = ReadOut::new("without its backplane").trouble(Trouble::Lost, why);
        }
        let tier = |up: Option<bool>| match up {
            None => "none",
            Some(true) => "up",
            Some(false) => "suspended",
        };
        let mut tiers = Table::new("Tiers", &["tier", "state", "hits", "faults"]);
        let none = String::new;
        tiers.push(["local".to_owned(), format!("{} entries", now.entries), now.hits.to_string(), none()]);
        tiers.push(["remote".to_owned(), tier(remote).to_owned(), now.remote_hits.to_string(), now.faults.to_string()]);
        tiers.push([
            "backplane".to_owned(),
            tier(backplane).to_owned(),
            none(),
            "counted with the remote tier".to_owned(),
        ]);
        out = out
            .level("hits, %", share)
            .fact("entries", now.entries)
            .total("loads", "loads in a minute", now.loads)
            .fact("failed loads", now.load_failures)
            .fact("stale values served", now.stale_hits)
            .fact("misses", now.misses)
            .fact("superseded loads", now.superseded)
            .fact("evictions", now.evictions)
            .fact("invalidations", now.invalidations)
            .table(tiers);
        ready(Ok(out))
    }

    fn act<'a>(&'a self, order: &'a Order) -> BoxFuture<'a, Result<String, String>> {
        ready(unknown(order))
    }
}
