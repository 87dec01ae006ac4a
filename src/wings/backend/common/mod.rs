//! Parts that the engines on a server share.
pub(super) mod base64;
pub(super) mod early_timer;
mod event;
pub(super) mod exposure;
pub(super) mod mailbox;
pub(super) mod settings;
mod tls;

pub use event::{ConnectionEvent, ConnectionRole};
pub use tls::TlsConfig;
pub(super) use tls::Verify;
