//! The machine code of loaded modules, kept readable for consumers.
//!
//! * [`registry`]: what is loaded, by checksum; `cubin_loaded` and `cubin_unloaded`
//! * [`modules`]: where they come from
//! * [`image`]: what an image is and how long it is, by its own headers
//! * [`fatbin`]: the machine code inside a fat binary
//! * [`memory`]: reading what may not be there
//!
//! Code comes from CUPTI's module events while we are subscribed, which give what the driver runs,
//! whatever it was made from. While somebody else holds CUPTI it comes from the images that the program
//! hands to the driver; what the driver makes itself, from PTX, compressed entries or code that it links, is not
//! seen then.

pub mod fatbin;
pub mod image;
pub mod memory;
pub mod modules;
pub mod registry;
