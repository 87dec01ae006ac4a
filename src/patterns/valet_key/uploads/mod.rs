//! Uploads to an object store by signed URLs, and their completion.
mod begin; // the declaration of an upload, and its URL
mod checks; // the checks of a copy
mod complete; // the steps of a completion
mod component;
mod config;
mod error;
mod event;
mod row; // the stored forms: pure
mod rows; // requests to the store of rows
mod sweep; // uploads that nobody reports

pub use begin::{Declared, Ticket};
pub use checks::{Candidate, Inspection};
pub use complete::Accepted;
pub use component::Uploads;
pub use config::{StoreKind, UploadConfig};
pub use error::{RejectReason, UploadError};
pub use event::UploadEvent;
