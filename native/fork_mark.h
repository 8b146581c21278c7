// Knows whether this process is a child made by fork() of the process that loaded the library.
//
// Such a child has the parent's mappings and descriptors but is not a rank: were it to post to a
// channel, it would be taken for its parent.
#pragma once

namespace kadril {

bool is_forked_child();

}  // namespace kadril
