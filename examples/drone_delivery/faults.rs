//! The faults of a run, determined by a seed.
use std::{convert::Infallible, time::Duration};

use steadfast::{
    entropy::Entropy,
    sharding::ShardId,
    testing::faults::FaultNetwork,
    time::{Clock, Instant},
};

use crate::{args::Faults, services::Service};

/// The behaviour of a service for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Answers correctly.
    None,
    /// Answers late.
    Slow(Duration),
    /// Answers 503, with `Retry-After`.
    Overloaded,
    /// Resets the connection.
    Reset,
    /// Hangs for this long, then drops the connection.
    Hang(Duration),
}

/// The faults of one run.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    seed: u64,
    rates: Rates,
    /// The service that crashes, with start and duration.
    pub crash: Option<(Service, Duration, Duration)>,
    /// The service that fails most calls, with start and duration.
    pub brownout: Option<(Service, Duration, Duration)>,
    /// The shard that is cut off, if there are several, with start and duration.
    pub cut: Option<(ShardId, Duration, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Rates {
    slow: f64,
    overloaded: f64,
    reset: f64,
    hang: f64,
}

impl FaultPlan {
    /// Returns the plan of a seed.
    pub fn new(kind: Faults, seed: u64, shards: u32) -> Self {
        let rates = match kind {
            Faults::None => Rates { slow: 0.0, overloaded: 0.0, reset: 0.0, hang: 0.0 },
            Faults::Flaky => Rates { slow: 0.02, overloaded: 0.01, reset: 0.01, hang: 0.002 },
            Faults::Storm => Rates { slow: 0.05, overloaded: 0.02, reset: 0.04, hang: 0.01 },
        };
        let mut plan = Self { seed, rates, crash: None, brownout: None, cut: None };
        if kind == Faults::Storm {
            let draw = Entropy::from_seed(seed);
            let pick = |from: &[Service]| from[draw.up_to(from.len() as u64 - 1) as usize];
            let millis = |low: u64, high: u64| Duration::from_millis(low + draw.up_to(high - low));
            // The account service is called first for every request. A crash of it would hide all others, so another service crashes.
            let crashed = pick(&[Service::Package, Service::Drone, Service::Delivery]);
            let others: Vec<Service> = Service::ALL.into_iter().filter(|s| *s != crashed).collect();
            plan.crash = Some((crashed, millis(800, 1200), millis(2500, 3500)));
            plan.brownout = Some((pick(&others), millis(4500, 5000), millis(1500, 2500)));
            if shards > 1 {
                let shard = ShardId(u32::try_from(draw.up_to(u64::from(shards) - 1)).unwrap_or_default());
                plan.cut = Some((shard, millis(2000, 2500), millis(1000, 1500)));
            }
        }
        plan
    }

    /// Returns the time in which `service` is down or fails most calls, if any.
    pub fn broken(&self, service: Service) -> Option<(Duration, Duration)> {
        let plans = [self.crash, self.brownout].into_iter().flatten();
        plans.into_iter().find(|(broken, ..)| *broken == service).map(|(_, from, lasts)| (from, from + lasts))
    }

    /// Cuts the shard off for its time, and never ends.
    pub async fn cut(&self, network: &FaultNetwork, clock: &Clock, start: Instant) -> Infallible {
        if let Some((shard, from, lasts)) = self.cut {
            let shard = network.client(&shard.to_string());
            clock.sleep_until(start + from).await;
            shard.cut();
            clock.sleep_until(start + from + lasts).await;
            shard.heal();
        }
        std::future::pending().await
    }

    /// Returns the behaviour of `service` for its request number `n`, this long after the start.
    pub fn fault(&self, service: Service, n: u64, since: Duration) -> Fault {
        let draw = Entropy::from_seed(self.seed ^ (service as u64) << 56 ^ n.wrapping_mul(0xd6e8_feb8_6659_fd93));
        let (roll, size) = (draw.unit(), draw.unit());
        if let Some((browned, from, lasts)) = self.brownout
            && browned == service
            && (from..from + lasts).contains(&since)
            && roll < 0.85
        {
            return if size < 0.6 { Fault::Overloaded } else { Fault::Hang(HANG) };
        }
        let Rates { slow, overloaded, reset, hang } = self.rates;
        if roll < slow {
            Fault::Slow(Duration::from_millis(60 + (size * 340.0) as u64))
        } else if roll < slow + overloaded {
            Fault::Overloaded
        } else if roll < slow + overloaded + reset {
            Fault::Reset
        } else if roll < slow + overloaded + reset + hang {
            Fault::Hang(HANG)
        } else {
            Fault::None
        }
    }
}

/// Duration of a hang: longer than any protected call waits, short enough for an unprotected run to end.
const HANG: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_another_differs() {
        let faults = |seed| -> Vec<Fault> {
            let plan = FaultPlan::new(Faults::Storm, seed, 1);
            (0..500).map(|n| plan.fault(Service::Drone, n, Duration::ZERO)).collect()
        };
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
    }

    #[test]
    fn no_faults_means_none() {
        let plan = FaultPlan::new(Faults::None, 1, 4);
        assert!((0..10_000).all(|n| plan.fault(Service::Account, n, Duration::ZERO) == Fault::None));
        assert!(plan.crash.is_none() && plan.brownout.is_none() && plan.cut.is_none());
    }

    #[test]
    fn a_storm_cuts_off_one_of_several_shards_and_is_the_same_storm_else() {
        let plan = |shards| FaultPlan::new(Faults::Storm, 1, shards);
        let (alone, several) = (plan(1), plan(4));
        assert!(alone.cut.is_none() && several.cut.is_some_and(|(shard, ..)| shard.0 < 4));
        assert_eq!((alone.crash, alone.brownout), (several.crash, several.brownout));
    }
}
