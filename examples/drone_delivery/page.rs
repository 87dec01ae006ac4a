//! The report as text.
use std::{
    collections::{BTreeMap, HashMap},
    fmt::{self, Formatter},
};

use crate::{
    args::{Args, Faults},
    figures::{Quantiles, grouped, per_second, short},
    ledger::StoreAt,
    mover::Grown,
    pipelines::honoured_within,
    record::{Done, End},
    report::{Report, Sharded},
    services::Service,
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.head(f)?;
        self.classes(f)?;
        self.calls(f)?;
        self.broken(f)?;
        self.shards(f)?;
        self.times(f)?;
        self.owners(f)?;
        self.verdict(f)
    }
}

impl Report {
    fn head(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Args { seed, concurrency, unprotected, .. } = self.args;
        let faults = match self.args.faults {
            Faults::None => "no faults".to_owned(),
            Faults::Flaky => format!("flaky services (seed {seed})"),
            Faults::Storm => format!("a storm (seed {seed})"),
        };
        let rate = match self.args.rate() {
            Some(rate) => format!("{} started a second", grouped(rate)),
            None => "as fast as it goes".into(),
        };
        let bare = if unprotected { ", UNPROTECTED" } else { "" };
        writeln!(f, "\n{} requests, {faults}{bare}; {concurrency} at once, {rate}\n", grouped(self.input))?;
        let plans = [("refuses all connections", self.plan.crash), ("fails 85 % of its calls", self.plan.brownout)];
        for (what, plan) in plans {
            if let Some((service, from, lasts)) = plan {
                let (from, to) = (from.as_secs_f64(), (from + lasts).as_secs_f64());
                writeln!(f, "  from {from:.1} s to {to:.1} s {service} {what}")?;
            }
        }
        if let Some((shard, from, lasts)) = self.plan.cut {
            let (from, to) = (from.as_secs_f64(), (from + lasts).as_secs_f64());
            writeln!(f, "  from {from:.1} s to {to:.1} s {shard} is cut off")?;
        }
        if self.plan.crash.is_some() { writeln!(f) } else { Ok(()) }
    }

    fn classes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let class = |f: &mut Formatter<'_>, name, n: usize, note: &str| {
            let line = format!("  {name:<14}{:>9}   {note}", grouped(n));
            writeln!(f, "{}", line.trim_end())
        };
        let put_back = match self.record.put_back {
            0 => String::new(),
            n => {
                let who = if self.args.shards > 1 { "a service or a shard" } else { "a service" };
                format!("deferred {} times while {who} was unavailable, and continued later", grouped(n))
            }
        };
        class(f, "scheduled", self.scheduled(), &put_back)?;
        if !self.record.before.is_empty() {
            class(f, "", self.record.before.len(), "  resumed: finished before, by an earlier run")?;
        }
        class(f, "rejected", self.rejected(), "by the account service: the owner is suspended")?;
        class(f, "duplicates", self.duplicates(), "handled once")?;
        class(f, "dead-lettered", self.dead_lettered(), "")?;
        let mut reasons: BTreeMap<String, (usize, Vec<usize>)> = BTreeMap::new();
        for (line, letter) in &self.dead_letters {
            let (n, lines) = reasons.entry(letter.why.rule()).or_default();
            *n += letter.times;
            lines.push(*line);
        }
        for (rule, (n, lines)) in &reasons {
            class(f, "", *n, &format!("  {rule} ({})", some(lines)))?;
        }
        class(f, "lost", self.lost(), "")?;
        let mut reasons: HashMap<&str, usize> = HashMap::new();
        for done in &self.record.done {
            if let End::Lost(why) = &done.end {
                *reasons.entry(why).or_default() += 1;
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(why, n)| (std::cmp::Reverse(*n), *why));
        let (shown, more) = reasons.split_at(reasons.len().min(6));
        for (why, n) in shown {
            class(f, "", *n, &format!("  {why}"))?;
        }
        match more.iter().map(|(_, n)| n).sum() {
            0 => {}
            n => class(f, "", n, "  for other reasons")?,
        }
        if let Some(interrupt) = self.record.interrupted {
            let on = match self.args.store {
                StoreAt::Memory | StoreAt::Private(_) => "with `--store sqlite:FILE` another run could finish them",
                StoreAt::Sqlite(_) => "start again on the same file to finish them",
                StoreAt::Server(_) => "start again on the same server to finish them",
            };
            class(f, "not finished", self.unfinished(), &format!("ended by {interrupt}; {on}"))?;
        }
        match self.audit.half_done {
            0 => Ok(()),
            n => writeln!(f, "  {n:>23}   of them left half-done at the services", n = grouped(n)),
        }
    }

    fn calls(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n  {:<10}{:>9}{:>9}{:>9}   {:>9}{:>9}{:>10}{:>10}",
            "service", "calls", "retries", "failed", "openings", "open", "rejected", "saved [1]"
        )?;
        for (service, s) in Service::ALL.iter().zip(&self.figures) {
            writeln!(
                f,
                "  {service:<10}{:>9}{:>9}{:>9}   {:>9}{:>9}{:>10}{:>10}",
                grouped(s.calls),
                grouped(s.retries),
                grouped(s.failed),
                s.openings,
                short(s.open),
                grouped(s.rejected),
                short(s.saved),
            )?;
        }
        Ok(())
    }

    /// Prints the calls of a failing service, with and without the breaker's effect.
    fn broken(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let broken: Vec<_> = Service::ALL.iter().zip(&self.figures).filter(|(_, s)| s.rates.before.is_some()).collect();
        if broken.is_empty() {
            return Ok(());
        }
        writeln!(
            f,
            "\n  {:<28}{:>9}{:>9}   {:>15}{:>9}",
            "calls a second to", "before", "broken", "breaker open", "after"
        )?;
        for (service, s) in broken {
            writeln!(
                f,
                "  {service:<28}{:>9}{:>9}   {:>15}{:>9}",
                per_second(s.rates.before),
                per_second(s.rates.broken),
                per_second(s.rates.away),
                per_second(s.rates.after),
            )?;
        }
        Ok(())
    }

    /// Prints the distribution of the records, and the figures of each shard.
    fn shards(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Sharded { tally, traffic, grown, first } = &self.sharded;
        if tally.shards.len() < 2 {
            return Ok(());
        }
        let records = tally.records().max(1) as f64;
        let head = ["records", "share", "calls", "stale [4]", "moving [4]", "rejected", "openings"];
        write!(f, "\n  {:<10}", "shard")?;
        head.iter().try_for_each(|name| write!(f, "{name:>11}"))?;
        writeln!(f)?;
        for (shard, n) in &tally.shards {
            let t = traffic.get(shard).copied().unwrap_or_default();
            let share = format!("{:.1} %", *n as f64 / records * 100.0);
            let calls = [t.calls, t.stale, t.moving, t.rejected, t.openings].map(grouped);
            write!(f, "  {:<10}{:>11}{share:>11}", shard.to_string(), grouped(*n))?;
            calls.iter().try_for_each(|n| write!(f, "{n:>11}"))?;
            writeln!(f)?;
        }
        if let Some(Grown { shard, at, took, failed, caught_up }) = grown {
            let (at, took, caught_up) = (short(*at), short(*took), grouped(*caught_up));
            write!(
                f,
                "  {shard} was added after {at}, and had its share {took} later; {caught_up} records changed during the move"
            )?;
            if *failed > 0 {
                write!(f, "; a move failed {failed} times, and was gone on with")?;
            }
            writeln!(f)?;
        } else if self.args.add_shard.is_some() {
            writeln!(f, "  the job was over before a shard could be added")?;
        }
        if tally.shards.len() > *first as usize {
            let (moved, all) = (self.sharded.moved(), grouped(tally.records()));
            let ideal = 1.0 - f64::from(*first) / tally.shards.len() as f64;
            let (share, ideal) = (moved as f64 / records * 100.0, ideal * 100.0);
            let moved = grouped(moved);
            writeln!(f, "  {moved} of {all} records were moved, {share:.1} %; ideal is {ideal:.1} %")?;
        }
        Ok(())
    }

    fn times(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let line = |f: &mut Formatter<'_>, what: &str, n: usize, q: Quantiles| {
            let (p50, p99, max) = (short(q.p50), short(q.p99), short(q.max));
            writeln!(f, "  {what:<28}{:>9}{p50:>12}{p99:>12}{max:>12}", grouped(n))
        };
        writeln!(f, "\n  {:<28}{:>9}{:>12}{:>12}{:>12}", "time of [2]", "number", "p50", "p99", "max")?;
        for (service, s) in Service::ALL.iter().zip(&self.figures) {
            line(f, service.as_str(), self.record.steps[*service as usize].len(), s.step)?;
        }
        line(f, "a whole request", self.record.done.len(), self.took)
    }

    /// Prints the latencies of the busiest owner beside the others, if it is much busier.
    fn owners(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut owners: HashMap<&str, usize> = HashMap::new();
        for done in &self.record.done {
            *owners.entry(&done.owner).or_default() += 1;
        }
        let others = owners.len().saturating_sub(1);
        let Some((hot, n)) = owners.into_iter().max_by_key(|(owner, n)| (*n, *owner)) else { return Ok(()) };
        if others == 0 || n * 10 < self.record.done.len() {
            return Ok(());
        }
        let (its, theirs): (Vec<&Done>, Vec<&Done>) = self.record.done.iter().partition(|d| d.owner == hot);
        writeln!(f, "\n  {:<28}{:>9}{:>12}{:>12}{:>12}", "done after [3]", "number", "half", "99 %", "all")?;
        for (who, done) in [(hot.to_owned(), its), (format!("{} other owners", grouped(others)), theirs)] {
            let q = Quantiles::of(done.iter().map(|d| d.at));
            let (p50, p99, max) = (short(q.p50), short(q.p99), short(q.max));
            writeln!(f, "  {who:<28}{:>9}{p50:>12}{p99:>12}{max:>12}", grouped(done.len()))?;
        }
        Ok(())
    }

    fn verdict(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n  [1] rejected calls x the mean time of a failing call to that service")?;
        writeln!(f, "  [2] a step: one that succeeded, with its retries; a request: from its first step to its end,")?;
        writeln!(f, "      with the deferred time")?;
        writeln!(f, "  [3] since the start of the run: owners take turns, so one that asks for much waits for itself")?;
        if self.sharded.tally.shards.len() > 1 {
            writeln!(
                f,
                "  [4] refused by the shard, and routed again: by a map that was out of date; while the record was on the move"
            )?;
        }
        let (n, took) = (grouped(self.record.done.len()), short(self.elapsed));
        writeln!(f, "\n  {n} requests in {took}: {} a second", per_second(Some(self.throughput())))?;
        let accepted = &self.record.accepted;
        let (p50, p99) = (short(accepted.took.p50), short(accepted.took.p99));
        let (deepest, requests) = (grouped(accepted.deepest), grouped(accepted.requests));
        writeln!(
            f,
            "  accepted into the queue within {p50} (p99 {p99}) of their arrival; {deepest} in it at most, {requests} requests to it"
        )?;
        let probed = self.record.probed;
        let (asked, degraded) = (grouped(probed.asked), grouped(probed.degraded));
        write!(f, "  asked for its health {asked} times: without one of the services {degraded} times")?;
        match probed.liveness_failures {
            0 => writeln!(f, ", and always alive")?,
            n => writeln!(f, ", and NOT alive {} times", grouped(n))?,
        }
        if let Some(accounts) = &self.record.looked_up {
            let (asked, loads) = (grouped(accounts.hits + accounts.misses), grouped(accounts.loads));
            writeln!(
                f,
                "  accounts were looked up {asked} times, {loads} of them at the account service; the cache had the others"
            )?;
        }
        if let (Some(suspend), Some(after)) = (&self.args.suspend, self.passed_after_suspension()) {
            let (owner, at, after, bound) = (&suspend.owner, short(suspend.at), short(after), short(honoured_within()));
            writeln!(
                f,
                "  {owner} was suspended after {at}: its last request passed {after} later; at most {bound} are promised"
            )?;
        }
        if self.audit.repeats > 0 {
            let n = grouped(self.audit.repeats);
            writeln!(f, "  {n} calls came again after their answer was lost, and had no second effect")?;
        }
        if self.record.missed > 0 {
            let n = grouped(self.record.missed);
            writeln!(f, "  {n} events of breakers came too fast: openings and open times may lack some")?;
        }
        match self.audit.violations.as_slice() {
            [] if self.unfinished() > 0 => {
                writeln!(f, "  the services' books are compared when all requests have come to their end")?;
            }
            [] if self.audit.half_done > 0 => {
                writeln!(f, "  the services' books agree, but for the lost requests that were left half-done")?;
            }
            [] => writeln!(f, "  the services' books agree: one drone for each scheduled request, none for any other")?,
            violations => {
                writeln!(f, "  the services' books do NOT agree, {} times:", grouped(violations.len()))?;
                violations.iter().take(5).try_for_each(|v| writeln!(f, "    {v}"))?;
            }
        }
        match self.astray().as_slice() {
            [] => {
                let (n, shards) = (grouped(self.sharded.tally.records()), self.sharded.tally.shards.len());
                let where_from = if shards == 1 { String::new() } else { format!(" from {shards} shards, once each") };
                writeln!(f, "  all {n} records were read back{where_from}, and say the same")?;
            }
            astray => {
                writeln!(f, "  the records that were read back do NOT agree, {} times:", grouped(astray.len()))?;
                astray.iter().take(5).try_for_each(|why| writeln!(f, "    {why}"))?;
            }
        }
        if self.accounted() != self.input {
            let (classes, input) = (grouped(self.accounted()), grouped(self.input));
            writeln!(f, "  the classes add up to {classes}, NOT to the input of {input}")?;
        }
        if self.args.unprotected && self.lost() > 0 {
            writeln!(f, "  without protection such loss is to be expected; it is a failure all the same")?;
        }
        Ok(())
    }
}

/// Formats the first few line numbers.
fn some(lines: &[usize]) -> String {
    let mut text: Vec<String> = lines.iter().take(5).map(ToString::to_string).collect();
    if lines.len() > 5 {
        text.push("...".into());
    }
    format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, text.join(", "))
}
