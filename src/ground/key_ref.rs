//! Look-ups by a borrowed form of a key.
use std::{
    ffi::{OsStr, OsString},
    hash::Hash,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

/// A form of a key of type `K` that finds it in a table: `K` itself, or a borrowed form such as
/// [`str`] for [`String`].
///
/// A component with keys takes `&impl KeyRef<K>`, and makes an owned key only where it stores one.
/// To find keys of your own type by a borrowed form, implement it for that form; the hash must be
/// that of the key.
///
/// ```
/// use std::sync::Arc;
/// use steadfast::throttling::{KeyedRateLimiter, Quota};
///
/// let hosts = KeyedRateLimiter::<String>::new(Quota::per_minute(1)).unwrap();
/// assert!(hosts.try_acquire("10.0.0.1").is_ok());
/// assert!(hosts.try_acquire(&"10.0.0.1".to_owned()).is_err()); // the same key
///
/// let tenants = KeyedRateLimiter::<Arc<str>>::new(Quota::per_minute(1)).unwrap();
/// assert!(tenants.try_acquire("tenant-7").is_ok());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find keys of type `{K}`",
    label = "expected `{K}`, or a borrowed form of it, such as `str` for `String`",
    note = "pass the key by reference once: `&key`, not `&&key`"
)]
pub trait KeyRef<K>: Hash {
    /// Returns `true` if this form equals the key.
    fn is(&self, key: &K) -> bool;

    /// Returns the key.
    fn to_key(&self) -> K;

    /// Calls `f` with the key. A borrowed form makes an owned key for it.
    fn with_key<R>(&self, f: impl FnOnce(&K) -> R) -> R {
        f(&self.to_key())
    }
}

impl<K: Eq + Hash + Clone> KeyRef<K> for K {
    #[inline]
    fn is(&self, key: &K) -> bool {
        self == key
    }

    #[inline]
    fn to_key(&self) -> K {
        self.clone()
    }

    #[inline]
    fn with_key<R>(&self, f: impl FnOnce(&K) -> R) -> R {
        f(self)
    }
}

/// Implements [`KeyRef`] of an owned key for its borrowed form.
macro_rules! finds {
    ($owned:ty, by $borrowed:ty $(, of $T:ident)?) => {
        impl$(<$T: Hash + Eq + Clone>)? KeyRef<$owned> for $borrowed {
            #[inline]
            fn is(&self, key: &$owned) -> bool {
                *self == **key
            }

            fn to_key(&self) -> $owned {
                self.into()
            }
        }
    };
}
finds!(String, by str);
finds!(Box<str>, by str);
finds!(Arc<str>, by str);
finds!(Rc<str>, by str);
finds!(Vec<T>, by [T], of T);
finds!(Box<[T]>, by [T], of T);
finds!(Arc<[T]>, by [T], of T);
finds!(Rc<[T]>, by [T], of T);
finds!(PathBuf, by Path);
finds!(OsString, by OsStr);
