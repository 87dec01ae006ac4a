//! What goes wrong, decided by a seed.
use std::time::Duration;

use steadfast::entropy::Entropy;

use crate::{args::Faults, services::Service};

/// What a service does with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Answers as it should.
    None,
    /// Answers, late.
    Slow(Duration),
    /// Answers 503, with `Retry-After`.
    Overloaded,
    /// Resets the connection.
    Reset,
    /// Does not answer for this long, then drops the connection.
    Hang(Duration),
}

/// The faults of one run.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    seed: u64,
    rates: Rates,
    /// The service that crashes, from when, for how long.
    pub crash: Option<(Service, Duration, Duration)>,
    /// The service that fails most calls, from when, for how long.
    pub brownout: Option<(Service, Duration, Duration)>,
}

#[derive(Debug, Clone, Copy)]
struct Rates {
    slow: f64,
    overloaded: f64,
    reset: f64,
    hang: f64,
}

impl FaultPlan {
    /// The plan that this seed makes.
    pub fn new(kind: Faults, seed: u64) -> Self {
        let rates = match kind {
            Faults::None => Rates { slow: 0.0, overloaded: 0.0, reset: 0.0, hang: 0.0 },
            Faults::Flaky => Rates { slow: 0.02, overloaded: 0.01, reset: 0.01, hang: 0.002 },
            Faults::Storm => Rates { slow: 0.05, overloaded: 0.02, reset: 0.04, hang: 0.01 },
        };
        let mut plan = Self { seed, rates, crash: None, brownout: None };
        if kind == Faults::Storm {
            let draw = Entropy::from_seed(seed);
            let pick = |from: &[Service]| from[draw.up_to(from.len() as u64 - 1) as usize];
            let millis = |low: u64, high: u64| Duration::from_millis(low + draw.up_to(high - low));
            // Account sees every request and comes first: where it is down nothing else is called, so it is the others' turn.
            let crashed = pick(&[Service::Package, Service::Drone, Service::Delivery]);
            let others: Vec<Service> = Service::ALL.into_iter().filter(|s| *s != crashed).collect();
            plan.crash = Some((crashed, millis(800, 1200), millis(2500, 3500)));
            plan.brownout = Some((pick(&others), millis(4500, 5000), millis(1500, 2500)));
        }
        plan
    }

    /// When `service` is down, or fails most of its calls, if at all.
    pub fn broken(&self, service: Service) -> Option<(Duration, Duration)> {
        let plans = [self.crash, self.brownout].into_iter().flatten();
        plans.into_iter().find(|(broken, ..)| *broken == service).map(|(_, from, lasts)| (from, from + lasts))
    }

    /// What `service` does with its request number `n`, that came this long after the start.
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

/// Longer than any protected call waits; short enough for a run without protection to end.
const HANG: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_another_differs() {
        let faults = |seed| -> Vec<Fault> {
            let plan = FaultPlan::new(Faults::Storm, seed);
            (0..500).map(|n| plan.fault(Service::Drone, n, Duration::ZERO)).collect()
        };
        assert_eq!(faults(1), faults(1));
        assert_ne!(faults(1), faults(2));
    }

    #[test]
    fn no_faults_means_none() {
        let plan = FaultPlan::new(Faults::None, 1);
        assert!((0..10_000).all(|n| plan.fault(Service::Account, n, Duration::ZERO) == Fault::None));
        assert!(plan.crash.is_none() && plan.brownout.is_none());
    }
}
