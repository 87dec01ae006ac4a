//! The accounts of tenants, with room for twice those that are needed.
use std::{collections::HashMap, sync::Arc};

/// Number of accounts below which none is looked for that is not needed.
const FEW: usize = 64;

/// The accounts of tenants. `A` is a parameter only for the test.
pub(super) struct Tenants<A = super::account::Account> {
    accounts: HashMap<String, Arc<A>>,
    /// Number of accounts at which a new one has the unneeded ones removed: twice the number that
    /// was left the last time. So each new tenant examines two accounts on average, however many
    /// are needed, and a known tenant none.
    full: usize,
}

impl<A> Tenants<A> {
    /// Returns the account of a tenant. If it is new and the map is full, removes accounts that
    /// equal a new one and that nothing else holds.
    pub(super) fn account(
        &mut self,
        tenant: &str,
        make: impl FnOnce() -> A,
        is_unused: impl Fn(&Arc<A>) -> bool,
    ) -> Arc<A> {
        if let Some(account) = self.accounts.get(tenant) {
            return account.clone();
        }
        if self.accounts.len() >= self.full {
            self.accounts.retain(|_, account| !is_unused(account));
            self.full = (self.accounts.len() * 2).max(FEW);
        }
        let account = Arc::new(make());
        self.accounts.insert(tenant.to_owned(), account.clone());
        account
    }

    pub(super) fn accounts(&self) -> impl Iterator<Item = &A> {
        self.accounts.values().map(|account| &**account)
    }

    pub(super) fn len(&self) -> usize {
        self.accounts.len()
    }
}

impl<A> Default for Tenants<A> {
    fn default() -> Self {
        Self { accounts: HashMap::new(), full: FEW }
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use std::{cell::Cell, sync::Arc};

    use super::Tenants;

    /// At a full map every call of `tenant` examined all accounts, also those of known tenants.
    #[test]
    fn a_tenant_examines_two_accounts_on_average_whatever_the_number_of_busy_ones() {
        let mut tenants = Tenants::default();
        let examined = Cell::new(0u64);
        // Each fifth tenant is busy for ever.
        let is_unused = |account: &Arc<u64>| {
            examined.set(examined.get() + 1);
            !account.is_multiple_of(5)
        };
        for id in 0..100_000 {
            tenants.account(&id.to_string(), || id, is_unused);
            tenants.account("0", || 0, is_unused);
        }
        assert!(examined.get() <= 250_000, "{} accounts examined", examined.get());
        assert!((20_000..=60_000).contains(&tenants.len()), "{} accounts kept", tenants.len());
        let before = examined.get();
        for id in (0..100_000).step_by(5) {
            tenants.account(&id.to_string(), || id, is_unused);
        }
        assert_eq!(examined.get(), before, "a known tenant examines none");
    }
}
