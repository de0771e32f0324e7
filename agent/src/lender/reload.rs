//! Other terms for a lender that is at work.

use super::Lender;
use crate::config::Terms;
use std::sync::Arc;

impl Lender {
    /// Lends on these terms from now on. Leases go on, also those over a lowered capacity.
    ///
    /// Only the capacity (of [`Lender::slabs`] at most), the other limits, `headroom`,
    /// `recall_deadline` and `grace` may differ from the terms before.
    pub fn change_terms(&self, terms: Terms) {
        let (limits, headroom) = (terms.limits(), terms.headroom);
        *self.terms.write() = Arc::new(terms);
        self.books.lock().watch.set_headroom(headroom);
        self.with_book(|book, _| book.set_limits(limits));
    }
}
