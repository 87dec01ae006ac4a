//! Look-ups by borrowed keys.
use std::{
    ffi::{OsStr, OsString},
    hash::Hash,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use steadfast::{
    KeyRef,
    throttling::{KeyedRateLimiter, Quota},
};

fn finds<K: Eq + Hash + Clone, Q: KeyRef<K> + ?Sized>(key: &K, by: &Q) {
    let limiter = KeyedRateLimiter::<K>::new(Quota::new(2, Duration::from_secs(3600))).unwrap();
    limiter.try_acquire(by).unwrap();
    limiter.try_acquire(key).unwrap();
    assert!(limiter.try_acquire(by).is_err());
    assert!(limiter.try_acquire(key).is_err());
    assert_eq!(limiter.len(), 1);
}

#[test]
fn every_borrowed_form_finds_the_entry_of_its_key() {
    finds::<String, str>(&"a".to_owned(), "a");
    finds::<Arc<str>, str>(&"a".into(), "a");
    finds::<Box<str>, str>(&"a".into(), "a");
    finds::<Rc<str>, str>(&"a".into(), "a");
    finds::<Vec<u8>, [u8]>(&vec![1, 2], &[1, 2]);
    finds::<Box<[u8]>, [u8]>(&Box::from([1, 2]), &[1, 2]);
    finds::<Arc<[u8]>, [u8]>(&Arc::from([1, 2]), &[1, 2]);
    finds::<PathBuf, Path>(&"a/b".into(), Path::new("a/b"));
    finds::<OsString, OsStr>(&"a".into(), "a".as_ref());
    finds::<u64, u64>(&7, &7);
}

/// A key of a user's own, found by a part of it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Tenant(String);

impl KeyRef<Tenant> for str {
    fn is(&self, key: &Tenant) -> bool {
        key.0 == self
    }

    fn to_key(&self) -> Tenant {
        Tenant(self.to_owned())
    }
}

#[test]
fn a_user_s_own_key_has_borrowed_forms_too() {
    finds::<Tenant, str>(&Tenant("t7".to_owned()), "t7");
}
