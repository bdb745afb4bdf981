"use strict";

// The one global name: all scripts of the page are concatenated into a single classic script.
const Nero = {};
