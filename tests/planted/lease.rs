//! Plain leases by the clock of their server, with one fault at a time.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use steadfast::{
    lease::{Acquired, Held, Lease, LeaseError, LeaseFuture, Renewed},
    port::{Capabilities, Capability, FencingToken, PortError, PortErrorKind},
    testing::conformance::{Fixture, lease},
    time::{Clock, Instant},
};

use super::assert_each_fault_is_found;

/// The faults, and the case that finds each.
const FAULTS: &[(Fault, &str)] = {
    use Fault::*;
    &[
        // Grants.
        (EveryHolderIsGranted, "a_held_name_is_not_granted_to_another"),
        (GrantsAreOfTheHandle, "a_held_name_is_not_granted_to_another"),
        (GrantsTakeTwoSteps, "of_many_candidates_one_is_granted"),
        (NamesAreInLowerCase, "names_are_apart"),
        (NamesAreTrimmed, "names_are_apart"),
        (HoldersAreInLowerCase, "any_text_is_a_holder"),
        (HoldersAreOneLine, "any_text_is_a_holder"),
        (ReadsShowTheFirstGrant, "a_free_name_is_granted"),
        (ReadsShowNothing, "a_free_name_is_granted"),
        (ReadsShowReleasedGrants, "releasing_frees_at_once_and_an_old_token_changes_nothing"),
        (HeldNamesShowTheCaller, "a_held_name_is_not_granted_to_another"),
        (TheTimeLeftIsTheTime, "a_held_name_is_not_granted_to_another"),
        // Terms.
        (TermsNeverEnd, "a_term_that_is_over_is_granted_to_another_and_not_before"),
        (TermsEndEarly, "a_term_that_is_over_is_granted_to_another_and_not_before"),
        (TermsAreOfWholeSeconds, "a_term_that_is_over_is_granted_to_another_and_not_before"),
        (TermsAreAtMostAnHour, "the_longest_term_does_not_end"),
        (TheLongestTermOverflows, "the_longest_term_does_not_end"),
        (TermsFollowTheWallClock, "a_term_follows_no_wall_clock"),
        // Renewals.
        (RenewalsAreIgnored, "a_renewed_term_lasts"),
        (RenewalsChangeTheToken, "a_renewed_term_lasts"),
        (RenewalsKeepTheFirstTerm, "a_renewal_sets_the_term"),
        (RenewalsNeverShorten, "a_renewal_sets_the_term"),
        (RenewalsAreAdded, "a_renewal_sets_the_term"),
        (RenewalsRevive, "renewing_never_revives"),
        (RenewalsCheckNoToken, "a_holder_that_asks_again_is_granted_a_new_token"),
        (RenewalsCheckNoHolder, "renewing_never_revives"),
        (RenewalsGrantFreeNames, "renewing_never_revives"),
        (TheHolderWaitsForItself, "a_holder_that_asks_again_is_granted_a_new_token"),
        (TheHolderKeepsItsToken, "a_holder_that_asks_again_is_granted_a_new_token"),
        // Releases.
        (ReleasesEndWithTheTerm, "releasing_frees_at_once_and_an_old_token_changes_nothing"),
        (ReleasesCheckNoToken, "a_holder_that_asks_again_is_granted_a_new_token"),
        (ReleasesCheckNoHolder, "releasing_frees_at_once_and_an_old_token_changes_nothing"),
        (OldReleasesSucceedSilently, "releasing_frees_at_once_and_an_old_token_changes_nothing"),
        (EndedGrantsAreReleased, "an_ended_grant_is_not_released"),
        (ReleasesResetTheToken, "tokens_grow"),
        (EndsResetTheToken, "tokens_grow"),
        (TokensAreEqualForAllGrants, "tokens_grow"),
        // Requests to release.
        (RequestsAreLost, "a_release_request_reaches_the_holder_of_that_grant"),
        (RequestsStickToTheName, "a_release_request_reaches_the_holder_of_that_grant"),
        (RequestsForceTheRelease, "a_release_request_reaches_the_holder_of_that_grant"),
        (RequestsAreTakenByTheNextGrant, "a_release_request_stays_until_its_grant_ends"),
        (RequestsAreToldOnce, "a_release_request_stays_until_its_grant_ends"),
        (OldRequestsReplaceNewOnes, "a_release_request_for_another_grant_changes_nothing"),
        (RequestsKeepTheHighestToken, "a_release_request_for_another_grant_changes_nothing"),
        (RequestsAreKeptForLaterGrants, "a_release_request_for_another_grant_changes_nothing"),
        (RequestsForFreeNamesFail, "a_release_request_for_another_grant_changes_nothing"),
        (RequestsCheckNoToken, "a_release_request_reaches_the_holder_of_that_grant"),
        // Arguments, dropped requests.
        (EmptyNamesAreAccepted, "invalid_arguments_are_refused"),
        (EmptyHoldersAreAccepted, "invalid_arguments_are_refused"),
        (LongNamesAreCut, "invalid_arguments_are_refused"),
        (TermsOfZeroAreAccepted, "invalid_arguments_are_refused"),
        (RenewedTermsOfZeroRelease, "invalid_arguments_are_refused"),
        (RefusalsNameNoField, "invalid_arguments_are_refused"),
        (DroppedRequestsStayLocked, "a_dropped_request_leaves_the_name_usable"),
        // Restarts.
        (RestartsFreeTheNames, "what_was_accepted_outlives_a_restart"),
        (RestartsReviveReleasedNames, "what_was_accepted_outlives_a_restart"),
        (RestartsHoldNamesForEver, "what_was_accepted_outlives_a_restart"),
        (RestartsNumberTokensAnew, "tokens_grow_over_a_restart"),
        (DurabilityIsNotTested, "what_was_accepted_outlives_a_restart"),
    ]
};

/// A fault of the leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[rustfmt::skip]
enum Fault {
    EveryHolderIsGranted, GrantsAreOfTheHandle, GrantsTakeTwoSteps, NamesAreInLowerCase, NamesAreTrimmed, HoldersAreInLowerCase,
    HoldersAreOneLine, ReadsShowTheFirstGrant, ReadsShowNothing, ReadsShowReleasedGrants, HeldNamesShowTheCaller,
    TheTimeLeftIsTheTime,
    TermsNeverEnd, TermsEndEarly, TermsAreOfWholeSeconds, TermsAreAtMostAnHour, TheLongestTermOverflows, TermsFollowTheWallClock,
    RenewalsAreIgnored, RenewalsChangeTheToken, RenewalsKeepTheFirstTerm, RenewalsNeverShorten, RenewalsAreAdded, RenewalsRevive,
    RenewalsCheckNoToken, RenewalsCheckNoHolder, RenewalsGrantFreeNames, TheHolderWaitsForItself, TheHolderKeepsItsToken,
    ReleasesEndWithTheTerm, ReleasesCheckNoToken, ReleasesCheckNoHolder, OldReleasesSucceedSilently, EndedGrantsAreReleased,
    ReleasesResetTheToken, EndsResetTheToken, TokensAreEqualForAllGrants,
    RequestsAreLost, RequestsStickToTheName, RequestsForceTheRelease, RequestsAreTakenByTheNextGrant, RequestsAreToldOnce,
    OldRequestsReplaceNewOnes, RequestsKeepTheHighestToken, RequestsAreKeptForLaterGrants, RequestsForFreeNamesFail,
    RequestsCheckNoToken,
    EmptyNamesAreAccepted, EmptyHoldersAreAccepted, LongNamesAreCut, TermsOfZeroAreAccepted, RenewedTermsOfZeroRelease,
    RefusalsNameNoField, DroppedRequestsStayLocked,
    RestartsFreeTheNames, RestartsReviveReleasedNames, RestartsHoldNamesForEver, RestartsNumberTokensAnew, DurabilityIsNotTested,
}

#[derive(Debug)]
struct Planted {
    server: Arc<Mutex<Server>>,
    clock: Clock,
    fault: Option<Fault>,
}

#[derive(Debug, Default)]
struct Server {
    grants: BTreeMap<String, Grant>,
    first: BTreeMap<String, Grant>,
    released: BTreeMap<String, Grant>,
    requests: BTreeMap<String, u64>,
    /// The last token of each name.
    last: BTreeMap<String, u64>,
    locked: bool,
}

#[derive(Debug, Clone)]
struct Grant {
    holder: String,
    token: u64,
    term: Duration,
    ends: Instant,
}

const CAN: Capabilities =
    Capabilities::of("planted", &[Capability::Linearizable, Capability::Fencing]).largest_key(256);

impl Planted {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn now(&self) -> Instant {
        if self.is(Fault::TermsFollowTheWallClock) {
            return Instant::from_nanos(self.clock.wall().as_millis() * 1_000_000);
        }
        self.clock.now()
    }

    fn name(&self, name: &str) -> String {
        match self.fault {
            Some(Fault::NamesAreInLowerCase) => name.to_lowercase(),
            Some(Fault::NamesAreTrimmed) => name.trim_end().to_owned(),
            Some(Fault::LongNamesAreCut) => name.chars().take(CAN.max_key()).collect(),
            Some(Fault::GrantsAreOfTheHandle) => format!("{name} {self:p}"),
            _ => name.to_owned(),
        }
    }

    fn holder(&self, holder: &str) -> String {
        match self.fault {
            Some(Fault::HoldersAreInLowerCase) => holder.to_lowercase(),
            Some(Fault::HoldersAreOneLine) => holder.lines().next().unwrap_or_default().to_owned(),
            _ => holder.to_owned(),
        }
    }

    fn check(&self, name: &str, holder: &str) -> Result<(), LeaseError> {
        let part = |field: &str, part: &str, or_empty: bool| match part.len() {
            0 if !or_empty => Err(PortError::invalid(field, "must not be empty")),
            n if n > CAN.max_key() && !self.is(Fault::LongNamesAreCut) => Err(PortError::invalid(field, "is too long")),
            _ => Ok(()),
        };
        let checked = part("name", name, self.is(Fault::EmptyNamesAreAccepted));
        let checked = checked.and_then(|()| part("holder", holder, self.is(Fault::EmptyHoldersAreAccepted)));
        Ok(checked.map_err(|error| self.refusal(error))?)
    }

    fn refusal(&self, error: PortError) -> PortError {
        if self.is(Fault::RefusalsNameNoField) { PortError::new(error.kind(), "invalid request") } else { error }
    }

    fn check_term(&self, term: Duration) -> Result<(), LeaseError> {
        if term.is_zero() && !self.is(Fault::TermsOfZeroAreAccepted) {
            return Err(self.refusal(PortError::invalid("term", "must be longer than zero")).into());
        }
        Ok(())
    }

    fn ends(&self, term: Duration) -> Instant {
        let term = match self.fault {
            Some(Fault::TermsNeverEnd) => Duration::MAX,
            Some(Fault::TermsEndEarly) => term / 2,
            Some(Fault::TermsAreOfWholeSeconds) => Duration::from_secs(term.as_secs().saturating_add(1)),
            Some(Fault::TermsAreAtMostAnHour) => term.min(Duration::from_secs(3600)),
            Some(Fault::TheLongestTermOverflows) if term == Duration::MAX => Duration::ZERO,
            _ => term,
        };
        self.now() + term
    }

    fn is_live(&self, grant: &Grant) -> bool {
        self.now() < grant.ends
    }

    fn held(&self, grant: &Grant) -> Held {
        let left = if self.is(Fault::TheTimeLeftIsTheTime) {
            Duration::from_nanos(grant.ends.as_nanos())
        } else {
            grant.ends - self.now()
        };
        Held::new(grant.holder.clone(), FencingToken::new(grant.token), grant.term, left)
    }

    async fn lock(&self) -> Result<(), LeaseError> {
        if self.is(Fault::DroppedRequestsStayLocked) {
            if std::mem::replace(&mut self.server().locked, true) {
                return Err(PortError::new(PortErrorKind::Throttled, "locked by another request").into());
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn try_acquire(&self, name: &str, holder: &str, term: Duration) -> Result<Acquired, LeaseError> {
        self.check(name, holder)?;
        self.check_term(term)?;
        self.lock().await?;
        let (name, holder) = (self.name(name), self.holder(holder));
        let live = |server: &Server| server.grants.get(&name).filter(|grant| self.is_live(grant)).cloned();
        let mut seen = None;
        if self.is(Fault::GrantsTakeTwoSteps) {
            seen = Some(live(&self.server()));
            tokio::task::yield_now().await;
        }
        let server = &mut *self.server();
        let current = seen.unwrap_or_else(|| live(server));
        if let Some(current) = &current {
            let waits = current.holder != holder || self.is(Fault::TheHolderWaitsForItself);
            if waits && !self.is(Fault::EveryHolderIsGranted) {
                let mut held = self.held(current);
                if self.is(Fault::HeldNamesShowTheCaller) {
                    held.holder = holder;
                }
                server.locked = false;
                return Ok(Acquired::Held(held));
            }
            if self.is(Fault::TheHolderKeepsItsToken) {
                return Ok(Acquired::Granted(FencingToken::new(current.token)));
            }
        }
        let ends = self.ends(term);
        if self.is(Fault::EndsResetTheToken) && current.is_none() && server.grants.contains_key(&name) {
            server.last.remove(&name);
        }
        let last = server.last.entry(name.clone()).or_default();
        *last += u64::from(!self.is(Fault::TokensAreEqualForAllGrants));
        let grant = Grant { holder, token: *last, term, ends };
        if let (Some(Fault::RequestsAreTakenByTheNextGrant), Some(request)) =
            (self.fault, server.requests.get_mut(&name))
        {
            *request = grant.token;
        }
        server.first.entry(name.clone()).or_insert_with(|| grant.clone());
        server.grants.insert(name, grant);
        server.locked = false;
        Ok(Acquired::Granted(FencingToken::new(*last)))
    }

    fn try_renew(&self, name: &str, holder: &str, token: u64, term: Duration) -> Result<Renewed, LeaseError> {
        self.check(name, holder)?;
        let (name, holder) = (self.name(name), self.holder(holder));
        let mut server = self.server();
        if term.is_zero() && self.is(Fault::RenewedTermsOfZeroRelease) {
            server.grants.remove(&name);
            return Ok(Renewed::new(false));
        }
        self.check_term(term)?;
        let server = &mut *server;
        if self.is(Fault::RenewalsGrantFreeNames) && !server.grants.contains_key(&name) {
            return Ok(Renewed::new(false));
        }
        let grant = server.grants.get_mut(&name).ok_or(LeaseError::NotHeld)?;
        let is_live = self.is_live(grant) || self.is(Fault::RenewalsRevive);
        let is_its_own = grant.holder == holder || self.is(Fault::RenewalsCheckNoHolder);
        let is_current = grant.token == token || self.is(Fault::RenewalsCheckNoToken);
        if !(is_live && is_its_own && is_current) {
            return Err(LeaseError::NotHeld);
        }
        match self.fault {
            Some(Fault::RenewalsAreIgnored) => {}
            Some(Fault::RenewalsKeepTheFirstTerm) => grant.ends = self.ends(grant.term),
            Some(Fault::RenewalsNeverShorten) => {
                (grant.ends, grant.term) = (grant.ends.max(self.ends(term)), term);
            }
            Some(Fault::RenewalsAreAdded) => (grant.ends, grant.term) = (grant.ends + term, term),
            _ => (grant.ends, grant.term) = (self.ends(term), term),
        }
        if self.is(Fault::RenewalsChangeTheToken) {
            grant.token += 1;
            server.last.insert(name.clone(), grant.token);
        }
        let requested = server.requests.get(&name).copied();
        let is_requested = match self.fault {
            Some(Fault::RequestsAreLost) => false,
            Some(Fault::RequestsStickToTheName) => requested.is_some(),
            Some(Fault::RequestsAreToldOnce) => {
                server.requests.remove(&name);
                requested == Some(token)
            }
            _ => requested == Some(token),
        };
        Ok(Renewed::new(is_requested))
    }

    fn try_release(&self, name: &str, holder: &str, token: u64) -> Result<(), LeaseError> {
        self.check(name, holder)?;
        let (name, holder) = (self.name(name), self.holder(holder));
        let server = &mut *self.server();
        let released = server.grants.get(&name).filter(|grant| {
            (self.is_live(grant) || self.is(Fault::EndedGrantsAreReleased))
                && (grant.holder == holder || self.is(Fault::ReleasesCheckNoHolder))
                && (grant.token == token || self.is(Fault::ReleasesCheckNoToken))
        });
        let Some(released) = released.cloned() else {
            return if self.is(Fault::OldReleasesSucceedSilently) { Ok(()) } else { Err(LeaseError::NotHeld) };
        };
        if !self.is(Fault::ReleasesEndWithTheTerm) {
            server.grants.remove(&name);
        }
        if self.is(Fault::ReleasesResetTheToken) {
            server.last.remove(&name);
        }
        server.released.insert(name, released);
        Ok(())
    }

    fn try_read(&self, name: &str) -> Result<Option<Held>, LeaseError> {
        self.check(name, "a")?;
        let (name, server) = (self.name(name), self.server());
        let current = match self.fault {
            Some(Fault::ReadsShowNothing) => None,
            Some(Fault::ReadsShowTheFirstGrant) => {
                server.first.get(&name).map(|first| Grant { token: 1, term: first.term / 2, ..first.clone() })
            }
            Some(Fault::ReadsShowReleasedGrants) => server.grants.get(&name).or(server.released.get(&name)).cloned(),
            _ => server.grants.get(&name).filter(|grant| self.is_live(grant)).cloned(),
        };
        Ok(current.map(|grant| self.held(&grant)))
    }

    fn try_request(&self, name: &str, token: u64) -> Result<(), LeaseError> {
        self.check(name, "a")?;
        let (name, server) = (self.name(name), &mut *self.server());
        let current = server.grants.get(&name).map(|grant| grant.token);
        if current.is_none() && self.is(Fault::RequestsForFreeNamesFail) {
            return Err(LeaseError::NotHeld);
        }
        match self.fault {
            Some(Fault::RequestsForceTheRelease) => {
                server.grants.remove(&name);
            }
            Some(Fault::RequestsCheckNoToken) => {
                server.requests.insert(name, current.unwrap_or(token));
            }
            Some(Fault::OldRequestsReplaceNewOnes | Fault::RequestsAreTakenByTheNextGrant) => {
                server.requests.insert(name, token);
            }
            Some(Fault::RequestsKeepTheHighestToken) => {
                let requested = server.requests.entry(name).or_default();
                *requested = token.max(*requested);
            }
            Some(Fault::RequestsAreKeptForLaterGrants) if current.is_none_or(|current| current <= token) => {
                server.requests.insert(name, token);
            }
            _ if current == Some(token) => {
                server.requests.insert(name, token);
            }
            _ => {}
        }
        Ok(())
    }

    fn restart(&self) {
        let server = &mut *self.server();
        match self.fault {
            Some(Fault::RestartsFreeTheNames) => server.grants.clear(),
            Some(Fault::RestartsReviveReleasedNames) => server.grants.append(&mut server.released),
            Some(Fault::RestartsHoldNamesForEver) => {
                server.grants.values_mut().for_each(|grant| grant.ends = Instant::from_nanos(u64::MAX));
            }
            Some(Fault::RestartsNumberTokensAnew) => server.last.clear(),
            _ => {}
        }
    }
}

impl Lease for Planted {
    fn capabilities(&self) -> Capabilities {
        if self.is(Fault::DurabilityIsNotTested) { CAN.with(Capability::Durable) } else { CAN }
    }

    fn acquire<'a>(&'a self, name: &'a str, holder: &'a str, term: Duration) -> LeaseFuture<'a, Acquired> {
        Box::pin(self.try_acquire(name, holder, term))
    }

    fn renew<'a>(
        &'a self,
        name: &'a str,
        holder: &'a str,
        token: FencingToken,
        term: Duration,
    ) -> LeaseFuture<'a, Renewed> {
        Box::pin(async move { self.try_renew(name, holder, token.as_u64(), term) })
    }

    fn release<'a>(&'a self, name: &'a str, holder: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move { self.try_release(name, holder, token.as_u64()) })
    }

    fn read<'a>(&'a self, name: &'a str) -> LeaseFuture<'a, Option<Held>> {
        Box::pin(async move { self.try_read(name) })
    }

    fn request_release<'a>(&'a self, name: &'a str, token: FencingToken) -> LeaseFuture<'a, ()> {
        Box::pin(async move { self.try_request(name, token.as_u64()) })
    }
}

#[test]
fn each_fault_of_a_lease_is_found_by_a_case() {
    assert_each_fault_is_found(&lease::cases(), FAULTS, async |fault| {
        let (clock, time) = Clock::manual();
        let server = Arc::<Mutex<Server>>::default();
        let handle = move || Arc::new(Planted { server: server.clone(), clock: clock.clone(), fault });
        let fixture = Fixture::<dyn Lease>::new(handle()).with_second_handle(handle()).on_manual_time(&time);
        if fault == Some(Fault::DurabilityIsNotTested) {
            return fixture;
        }
        fixture.with_restart(async move || {
            handle().restart();
            Fixture::<dyn Lease>::new(handle()).with_second_handle(handle())
        })
    });
}
