//! Metrics of leader election.
use super::super::registry::{Measured, Sample, Scope};
use crate::leader_election::{LeaderElection, LeaderElectionEvent, TermEnd};

impl Measured for LeaderElection {
    const KIND: &'static str = "leader_election";

    fn measure(&self, scope: &Scope) -> Sample {
        let elected = scope.counter("steadfast_leader_election_elected_total", &[]);
        let ended =
            scope.by_label("steadfast_leader_election_ended_total", "reason", &TermEnd::ALL.map(TermEnd::as_str));
        let failures = scope.counter("steadfast_leader_election_call_failures_total", &[]);
        self.events().tap(move |event| match event {
            LeaderElectionEvent::Elected { .. } => elected.increment(1),
            LeaderElectionEvent::Ended { why, .. } => ended.increment(why.as_str()),
            LeaderElectionEvent::CallFailed { .. } => failures.increment(1),
            _ => {}
        });
        let election = self.clone();
        let leads = scope.gauge("steadfast_leader_election_is_leader", &[]);
        let healthy = scope.gauge("steadfast_leader_election_healthy", &[]);
        Box::new(move || {
            leads.set(f64::from(u8::from(election.is_leader())));
            healthy.set(f64::from(u8::from(election.health().healthy)));
        })
    }
}
