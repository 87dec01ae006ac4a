//! Metrics of supervisors and of health checks.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    health::{Group, GroupReason, Health, HealthEvent, HealthStatus},
    supervisor::{ChildFailure, Supervisor, SupervisorEvent},
};

impl Measured for Supervisor {
    const KIND: &'static str = "supervisor";

    fn measure(&self, scope: &Scope) -> Sample {
        let kinds = ChildFailure::ALL.map(ChildFailure::as_str);
        let failures = scope.by_label("steadfast_supervisor_failures_total", "failure", &kinds);
        let escalations = scope.counter("steadfast_supervisor_escalations_total", &[]);
        let slow_polls = scope.counter("steadfast_supervisor_slow_polls_total", &[]);
        self.events().tap(move |event| match event {
            SupervisorEvent::Failed { failure, .. } => failures.increment(failure.as_str()),
            SupervisorEvent::Escalated { .. } => escalations.increment(1),
            SupervisorEvent::SlowPoll { .. } => slow_polls.increment(1),
            _ => {}
        });
        let gauges = self.state().into_iter().map(|child| {
            let of = |metric| scope.gauge(metric, &[("child", child.name.as_str())]);
            [
                of("steadfast_supervisor_running"),
                of("steadfast_supervisor_restarts"),
                of("steadfast_supervisor_polls"),
                of("steadfast_supervisor_poll_time_seconds"),
                of("steadfast_supervisor_longest_poll_seconds"),
            ]
        });
        let (gauges, supervisor) = (gauges.collect::<Vec<_>>(), self.clone());
        Box::new(move || {
            for ([running, restarts, polls, time, longest], child) in gauges.iter().zip(supervisor.state()) {
                running.set(f64::from(u8::from(child.phase.is_running())));
                restarts.set(child.restarts as f64);
                polls.set(child.polls as f64);
                time.set(child.poll_time.as_secs_f64());
                longest.set(child.longest_poll.as_secs_f64());
            }
        })
    }
}

impl Measured for Health {
    const KIND: &'static str = "health";

    fn measure(&self, scope: &Scope) -> Sample {
        let failures = scope.counter("steadfast_health_check_failures_total", &[]);
        self.events().tap(move |event| {
            if let HealthEvent::CheckFailed { .. } = event {
                failures.increment(1);
            }
        });
        let ready = scope.gauge("steadfast_health_ready", &[]);
        let ejected = scope.gauge("steadfast_health_ejected", &[]);
        let executions: Vec<_> = self
            .checks()
            .map(|check| (check.to_owned(), scope.gauge("steadfast_health_executions", &[("check", check)])))
            .collect();
        let health = self.clone();
        Box::new(move || {
            let report = health.last_report(&Group::Readiness);
            ready.set(f64::from(u8::from(report.status != HealthStatus::Unhealthy)));
            ejected.set(f64::from(u8::from(report.reason == Some(GroupReason::Ejected))));
            for (check, gauge) in &executions {
                gauge.set(health.executions(check).unwrap_or_default() as f64);
            }
        })
    }
}
