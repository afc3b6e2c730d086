//! Which launches are sampled, and what becomes of them.
//!
//! * [`bucket`]: the token buckets of a thread
//! * [`counts`]: how many launches there were
//! * [`switch`]: kernel activity on while a sampled launch is open, off after it
//! * [`correlation`]: the sampled launches whose kernel records are still to come
//! * [`launch`]: one launch from its entry to its announcement
//! * [`deliver`]: kernel records on their way to the probes

pub mod bucket;
pub mod correlation;
pub mod counts;
pub mod deliver;
pub mod launch;
pub mod switch;
