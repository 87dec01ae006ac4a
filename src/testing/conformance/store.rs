//! What every [`Store`](crate::store::Store) must hold.
use super::Fixture;
use crate::store::{Key, Store, StoreExt};

/// Makes one named test of each case of the store's contract.
#[macro_export]
macro_rules! store_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(store, $make; a_record_that_is_not_there_is_none, what_was_put_is_read);
    };
}

/// A record that is not there is `None`.
pub async fn a_record_that_is_not_there_is_none(fixture: &Fixture<dyn Store>) {
    assert_eq!(fixture.port().get(Key::new("p", "nope")).await.unwrap_or_else(|e| panic!("{e}")), None);
}

/// What was put is read, by the other door too.
pub async fn what_was_put_is_read(fixture: &Fixture<dyn Store>) {
    let key = Key::new("p", "r");
    let version = fixture.port().insert(key, "v").await.unwrap_or_else(|e| panic!("{e}"));
    let record = fixture.other().get(key).await.unwrap_or_else(|e| panic!("{e}")).unwrap_or_else(|| panic!("absent"));
    assert_eq!((&record.value[..], record.version), (&b"v"[..], version));
}
