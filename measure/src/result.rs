//! The functions' result here.

use std::error::Error;

/// Errors cross threads here.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
