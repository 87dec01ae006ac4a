//! Metrics of supervisors, of configuration stores, of reconfigurations and of health checks.
use super::super::registry::{Measured, Sample, Scope};
use crate::{
    config_store::{ConfigStore, ConfigStoreEvent, RejectReason},
    health::{Group, GroupReason, Health, HealthEvent, HealthStatus},
    reconfiguration::{AbortReason, Reconfigurer, ReconfigurerEvent, Rollout, RolloutEvent},
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

impl<T: Send + Sync + 'static> Measured for ConfigStore<T> {
    const KIND: &'static str = "config_store";

    fn measure(&self, scope: &Scope) -> Sample {
        let reasons = RejectReason::ALL.map(RejectReason::as_str);
        let rejections = scope.by_label("steadfast_config_store_rejections_total", "reason", &reasons);
        let failures = scope.counter("steadfast_config_store_refresh_failures_total", &[]);
        self.events().tap(move |event| match event {
            ConfigStoreEvent::Rejected { reason, .. } => rejections.increment(reason.as_str()),
            ConfigStoreEvent::RefreshFailed { .. } => failures.increment(1),
            _ => {}
        });
        let number = scope.gauge("steadfast_config_store_revision", &[]);
        let age = scope.gauge("steadfast_config_store_age_seconds", &[]);
        let on_trial = scope.gauge("steadfast_config_store_on_trial", &[]);
        let settings = self.clone();
        Box::new(move || {
            let state = settings.state();
            number.set(state.number as f64);
            age.set(state.age.map_or(f64::INFINITY, |age| age.as_secs_f64()));
            on_trial.set(f64::from(u8::from(state.on_trial.is_some())));
        })
    }
}

impl<S: Clone + PartialEq + Send + Sync + 'static> Measured for Reconfigurer<S> {
    const KIND: &'static str = "reconfigurer";

    fn measure(&self, scope: &Scope) -> Sample {
        let of = ["applied", "refused", "rolled_back", "partially_applied"];
        let changes = scope.by_label("steadfast_reconfigurer_changes_total", "end", &of);
        self.events().tap(move |event| {
            changes.increment(match event {
                ReconfigurerEvent::Applied { .. } => "applied",
                ReconfigurerEvent::Refused { .. } => "refused",
                ReconfigurerEvent::RolledBack { .. } => "rolled_back",
                ReconfigurerEvent::PartiallyApplied { .. } => "partially_applied",
            });
        });
        let whole = scope.gauge("steadfast_reconfigurer_whole", &[]);
        let changes = self.clone();
        Box::new(move || whole.set(f64::from(u8::from(changes.is_whole()))))
    }
}

impl Measured for Rollout {
    const KIND: &'static str = "rollout";

    fn measure(&self, scope: &Scope) -> Sample {
        const COMPLETED: &str = "completed";
        let [rejected, unhealthy, vanished, by_hand] = AbortReason::ALL.map(AbortReason::as_str);
        let of = [COMPLETED, rejected, unhealthy, vanished, by_hand];
        let ends = scope.by_label("steadfast_rollout_ends_total", "end", &of);
        let stages = scope.counter("steadfast_rollout_stages_total", &[]);
        self.events().tap(move |event| match event {
            RolloutEvent::StageEntered { .. } => stages.increment(1),
            RolloutEvent::Completed { .. } => ends.increment(COMPLETED),
            RolloutEvent::Aborted { reason, .. } => ends.increment(reason.as_str()),
        });
        Box::new(|| {})
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
