alignas(16) unsigned char emulation_shared_begin[16];  // see scheduler.cpp
