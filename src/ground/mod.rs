//! The lowest floor: values, time, randomness, synchronisation. It imports nothing else of this
//! crate.

#[cfg(any(feature = "jwt", feature = "object_store"))]
pub(crate) mod address;
pub mod backoff;
pub(crate) mod budget;
pub(crate) mod build;
pub(crate) mod caught;
pub mod codec;
pub mod config;
pub mod entropy;
pub(crate) mod flight;
pub(crate) mod hash;
pub(crate) mod in_progress;
pub(crate) mod key_ref;
pub mod observe;
pub mod outcome;
pub(crate) mod race;
pub(crate) mod record;
#[cfg(any(feature = "console", feature = "object_store"))]
pub(crate) mod sha256;
pub(crate) mod sharded;
pub(crate) mod spawn;
#[cfg(any(feature = "http", feature = "jwt"))]
#[cfg_attr(not(feature = "http"), allow(unreachable_pub, reason = "`http` makes it public"))]
pub(crate) mod strict_path;
pub(crate) mod striped;
pub(crate) mod sync;
pub mod time;
#[cfg(feature = "jwt")]
pub mod token;
pub(crate) mod validator;
pub(crate) mod window;
pub(crate) mod wire;
