//! Metrics of the rooms at the edge: verifiers of tokens, trusted hosts, valet keys and their
//! uploads, gates and sites.
use super::super::registry::{Measured, Sample, Scope};
#[cfg(feature = "object_store")]
use crate::static_content::{StaticSite, StaticSiteEvent};
#[cfg(all(feature = "tower", feature = "http"))]
use crate::tower::{GateEvent, GateLayer, GateRule};
#[cfg(all(feature = "jwt", feature = "object_store"))]
use crate::valet_key::{RejectReason, UploadEvent, Uploads};
#[cfg(feature = "jwt")]
use crate::{
    federated_identity::{FetchFailure, TokenVerifier, TokenVerifierEvent},
    gatekeeper::{TrustedHost, TrustedHostEvent},
    token::TokenReason,
    valet_key::{KeyRefused, ValetKeyEvent, ValetKeys},
};

#[cfg(feature = "jwt")]
impl Measured for TokenVerifier {
    const KIND: &'static str = "token_verifier";

    fn measure(&self, scope: &Scope) -> Sample {
        let reasons = TokenReason::ALL.map(TokenReason::as_str);
        let refused = scope.by_label("steadfast_token_verifier_refused_total", "reason", &reasons);
        let fetched = scope.counter("steadfast_token_verifier_fetches_total", &[]);
        let failed = scope.by_label("steadfast_token_verifier_fetch_failures_total", "why", &FetchFailure::WORDS);
        self.events().tap(move |event| match event {
            TokenVerifierEvent::Refused { reason, .. } => refused.increment(reason.as_str()),
            TokenVerifierEvent::KeysFetched { .. } => fetched.increment(1),
            TokenVerifierEvent::FetchFailed { why, .. } => failed.increment(why.as_str()),
        });
        let issuers = scope.gauge("steadfast_token_verifier_issuers", &[]);
        let away = scope.gauge("steadfast_token_verifier_issuers_away", &[]);
        let verifier = self.clone();
        Box::new(move || {
            let states = verifier.state();
            issuers.set(states.len() as f64);
            away.set(states.iter().filter(|issuer| issuer.is_away).count() as f64);
        })
    }
}

#[cfg(feature = "jwt")]
impl<T: 'static> Measured for TrustedHost<T> {
    const KIND: &'static str = "trusted_host";

    fn measure(&self, scope: &Scope) -> Sample {
        let reasons = TokenReason::ALL.map(TokenReason::as_str);
        let refused = scope.by_label("steadfast_trusted_host_refused_total", "reason", &reasons);
        let replayed = scope.counter("steadfast_trusted_host_replayed_total", &[]);
        let undecodable = scope.counter("steadfast_trusted_host_undecodable_total", &[]);
        let failures = scope.counter("steadfast_trusted_host_store_failures_total", &[]);
        self.events().tap(move |event| match event {
            TrustedHostEvent::Refused { reason } => refused.increment(reason.as_str()),
            TrustedHostEvent::Replayed => replayed.increment(1),
            TrustedHostEvent::Undecodable => undecodable.increment(1),
            TrustedHostEvent::StoreAway { .. } => failures.increment(1),
        });
        Box::new(|| ())
    }
}

#[cfg(feature = "jwt")]
impl Measured for ValetKeys {
    const KIND: &'static str = "valet_keys";

    fn measure(&self, scope: &Scope) -> Sample {
        let reasons: Vec<_> = KeyRefused::WORDS.into_iter().chain(TokenReason::ALL.map(TokenReason::as_str)).collect();
        let refused = scope.by_label("steadfast_valet_keys_refused_total", "reason", &reasons);
        let events = ["issued", "used", "revoked", "store_failed"];
        let [issued, used, revoked, failed] = scope.counters("steadfast_valet_keys_events_total", "event", events);
        let bytes = scope.counter("steadfast_valet_keys_bytes_total", &[]);
        self.events().tap(move |event| match event {
            ValetKeyEvent::Issued { .. } => issued.increment(1),
            ValetKeyEvent::Used { .. } => used.increment(1),
            ValetKeyEvent::Transferred { bytes: moved, .. } => bytes.increment(*moved),
            ValetKeyEvent::Refused { why, .. } => refused.increment(why),
            ValetKeyEvent::Revoked { .. } => revoked.increment(1),
            ValetKeyEvent::StoreAway { .. } => failed.increment(1),
        });
        Box::new(|| ())
    }
}

#[cfg(all(feature = "jwt", feature = "object_store"))]
impl Measured for Uploads {
    const KIND: &'static str = "uploads";

    fn measure(&self, scope: &Scope) -> Sample {
        let reasons = RejectReason::ALL.map(RejectReason::as_str);
        let rejected = scope.by_label("steadfast_uploads_rejected_total", "reason", &reasons);
        let events = ["begun", "limited", "accepted", "sweep_failed"];
        let [begun, limited, accepted, failed] = scope.counters("steadfast_uploads_events_total", "event", events);
        let moved = scope.counter("steadfast_uploads_bytes_total", &[]);
        self.events().tap(move |event| match event {
            UploadEvent::Begun { .. } => begun.increment(1),
            UploadEvent::Limited { .. } => limited.increment(1),
            UploadEvent::Accepted { bytes, .. } => {
                accepted.increment(1);
                moved.increment(*bytes);
            }
            UploadEvent::Rejected { reason, .. } => rejected.increment(reason.as_str()),
            UploadEvent::SweepFailed { .. } => failed.increment(1),
        });
        Box::new(|| ())
    }
}

#[cfg(all(feature = "tower", feature = "http"))]
impl Measured for GateLayer {
    const KIND: &'static str = "gate";

    fn measure(&self, scope: &Scope) -> Sample {
        let rules = GateRule::ALL.map(GateRule::as_str);
        let refused = scope.by_label("steadfast_gate_refused_total", "rule", &rules);
        self.events().tap(move |event| match event {
            GateEvent::Refused { rule, .. } => refused.increment(rule.as_str()),
        });
        let (bodies, gate) = (scope.gauge("steadfast_gate_bodies", &[]), self.clone());
        Box::new(move || bodies.set(gate.bodies() as f64))
    }
}

#[cfg(feature = "object_store")]
impl Measured for StaticSite {
    const KIND: &'static str = "static_site";

    fn measure(&self, scope: &Scope) -> Sample {
        let failures = scope.counter("steadfast_static_site_refresh_failures_total", &[]);
        self.events().tap(move |event| match event {
            StaticSiteEvent::RefreshFailed { .. } => failures.increment(1),
            StaticSiteEvent::Switched { .. } => {}
        });
        let number = scope.gauge("steadfast_static_site_release", &[]);
        let age = scope.gauge("steadfast_static_site_age_seconds", &[]);
        let site = self.clone();
        Box::new(move || {
            let state = site.state();
            number.set(state.number as f64);
            age.set(state.age.as_secs_f64());
        })
    }
}
